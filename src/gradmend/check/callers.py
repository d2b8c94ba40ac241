"""In which grad mode a function is called, by the text alone: every place that names it, and what stands around that place.

A function that is tried on its own runs in grad mode by assumption. Where all that names it stands under no_grad, in these
files, the assumption is wrong. Another function of the same name is another one, where the project shows which is meant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gradmend.check.namespaces import Namespace
from gradmend.check.project import Project, parse

_ROUNDS = 4  # callers of callers that are looked for
_OFF = frozenset({"no_grad", "inference_mode"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Definition(NamedTuple):
    """A function, by where it stands. `owner`: the class around it."""

    file: str
    owner: str
    name: str


class _Mention(NamedTuple):
    file: str
    owner: str  # the class around it
    of: str | None  # "" for the bare name, else what stands before the dot; None for an expression
    by: Definition | bool  # the function that it stands in; else whether it stands in grad mode


@dataclass(slots=True)
class Callers:
    """Who names a function, by its bare name; and what the names of each file stand for."""

    of: dict[str, set[_Mention]] = field(default_factory=dict)
    spaces: dict[str, Namespace] = field(default_factory=dict)
    far: set[str] = field(default_factory=set)  # names that were not looked for
    project: Project = field(default_factory=Project)

    def add(self, tree: ast.Module, file: str) -> Callers:
        self.spaces[file] = Namespace(tree)
        todo: list[tuple[ast.AST, Definition | bool, str]] = [(tree, True, "")]
        while todo:
            node, by, owner = todo.pop()
            if isinstance(node, ast.ClassDef):
                todo += [(child, by, owner) for child in (*node.decorator_list, *node.bases)]
                todo += [(child, by, node.name) for child in node.body]
                continue
            if isinstance(node, _FUNCTIONS):
                modes = [m for d in node.decorator_list if (m := _mode(d)) is not None]
                inside = modes[0] if modes else Definition(file, owner, node.name)
                todo += [(child, by, owner) for child in (*node.decorator_list, node.args)]
                todo += [(child, inside, owner) for child in node.body]
                continue
            if isinstance(node, (ast.With, ast.AsyncWith)):
                inner = by
                for item in node.items:
                    todo.append((item, inner, owner))
                    mode = _mode(item.context_expr)
                    inner = inner if mode is None else mode
                todo += [(child, inner, owner) for child in node.body]
                continue
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self.of.setdefault(node.id, set()).add(_Mention(file, owner, "", by))
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                base = node.value.id if isinstance(node.value, ast.Name) else None
                self.of.setdefault(node.attr, set()).add(_Mention(file, owner, base, by))
            todo += [(child, by, owner) for child in ast.iter_child_nodes(node)]
        return self

    def never_in_grad_mode(self, function: Definition) -> bool:
        """Somebody names it, and all who do are under no_grad, themselves or by their own callers."""
        seen: set[Definition] = set()
        todo = [function]
        while todo:
            one = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            by = {m.by for m in self.of.get(one.name, ()) if m.by != one and self._may_be(m, one)}
            if True in by or not by or one.name in self.far:
                return False
            todo += [other for other in by if isinstance(other, Definition)]
        return True

    def _may_be(self, mention: _Mention, function: Definition) -> bool:
        """Does this mention of its name mean the function, as far as the files show?"""
        here, near = self.spaces[mention.file], mention.file == function.file
        name = function.name
        if mention.of == "":
            if function.owner or name in here.functions or name not in here.imports:
                mine = near and mention.owner == function.owner if function.owner else near
                return mine or (not function.owner and here.stars and name not in here.functions)
            return self._imported(mention.file, name, function)
        if mention.of in ("self", "cls") and mention.owner:
            if not function.owner:
                return False
            own = here.classes.get(mention.owner)
            if (near and mention.owner == function.owner) or own is None or name not in own.methods:
                return True
            return self._descends(function, mention.owner)
        if mention.of in here.classes:
            there = here.classes[mention.of]
            return bool(function.owner) and (
                name not in there.methods or (near and mention.of == function.owner)
            )
        if mention.of in here.imports and not function.owner:
            return self._imported(mention.file, mention.of, function, inside=True)
        return bool(function.owner) or mention.of is None

    def _imported(self, file: str, name: str, function: Definition, inside: bool = False) -> bool:
        """May the imported name be the function, or the module with it inside? Yes, unless another file that is known has it."""
        level, module, attribute = self.spaces[file].imports[name]
        importer = self.project.module(file)
        found = self.project.find(importer, f"{module}.{attribute}".strip("."), level) if attribute else None
        found = found or self.project.find(importer, module, level)
        if found is None or found.file == function.file:
            return True
        there = self.spaces.get(found.file)
        return there is None or function.name not in there.functions

    def _descends(self, function: Definition, base: str) -> bool:
        """Is the function's class made from the other, by the names of their bases?"""
        seen: set[str] = set()
        todo = [function.owner]
        while todo:
            one = todo.pop()
            if one == base:
                return True
            if one not in seen:
                seen.add(one)
                todo += [
                    b
                    for space in self.spaces.values()
                    if one in space.classes
                    for b in space.classes[one].bases
                ]
        return False


def callers_in(files: list[str], functions: Iterable[Definition]) -> Callers:
    """Who names these functions in these files, who names those, and so on: only files that do are parsed."""
    found = Callers()
    names = {function.name for function in functions}
    asked: set[str] = set()
    for _ in range(_ROUNDS):
        names -= asked
        if not names:
            return found
        asked |= names
        wanted = re.compile(rb"\b(?:" + b"|".join(re.escape(n.encode()) for n in sorted(names)) + rb")\b")
        for file in files:
            if file not in found.spaces and (tree := _tree(file, wanted)) is not None:
                found.add(tree, file)
        mentions = [m for name in asked for m in found.of.get(name, ())]
        names = {m.by.name for m in mentions if isinstance(m.by, Definition)}
    found.far |= names - asked
    return found


def _tree(file: str, wanted: re.Pattern[bytes]) -> ast.Module | None:
    try:
        with open(file, "rb") as handle:
            source = handle.read()
        return parse(source, file) if file.endswith((".py", ".pyw")) and wanted.search(source) else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _mode(expression: ast.expr) -> bool | None:
    """The grad mode that a decorator or a context sets; None for another."""
    call = expression if isinstance(expression, ast.Call) else None
    function = call.func if call is not None else expression
    name = getattr(function, "attr", getattr(function, "id", ""))
    given = call.args[0] if call is not None and call.args else None
    if name == "enable_grad":
        return True
    if name in _OFF:
        return isinstance(given, ast.Constant) and given.value is False
    if name == "set_grad_enabled" and isinstance(given, ast.Constant):
        return bool(given.value)
    return None
