"""Functions, classes and imports: what a module defines."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gradmend.check.values import Alt, Class, Const, Ext, Function, Lazy, ModuleValue, Value, unknown
from gradmend.check.walk.frames import Frame

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

_MODES = frozenset({"no_grad", "inference_mode", "enable_grad", "set_grad_enabled"})
_SOUNDS = re.compile("grad|infer|eval|fr[eo]{1,2}z", re.IGNORECASE)


class Definitions:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def table(self) -> dict[type, Callable[[Any], str]]:
        """Which of these takes which kind of syntax."""
        return {
            ast.FunctionDef: self._def,
            ast.AsyncFunctionDef: self._def,
            ast.ClassDef: self._class,
            ast.Import: self._import,
            ast.ImportFrom: self._import_from,
        }

    def _def(self, node: Any) -> str:
        self.walk.statements.bind_name(node.name, self.define(node, self.walk.frame))
        return ""

    def define(self, node: Any, frame: Frame, cls: Class | None = None) -> Value:
        outer = (frame.env, *frame.outer) if frame.function is not None else ()
        made = Function(node, frame.module, outer, cls)
        for decorator in node.decorator_list:
            self.decorate(made, decorator)
        return made

    def decorate(self, made: Function, decorator: ast.expr) -> None:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if name in ("no_grad", "inference_mode"):
            made.grad_mode = False
            made.inference = name == "inference_mode"
        elif name == "enable_grad":
            made.grad_mode = True
        elif name == "set_grad_enabled" and isinstance(decorator, ast.Call) and decorator.args:
            first = decorator.args[0]
            made.grad_mode = bool(first.value) if isinstance(first, ast.Constant) else None
        elif name == "staticmethod":
            made.kind = "static"
        elif name == "classmethod":
            made.kind = "class"
        elif name in ("property", "cached_property"):
            made.kind = "property"
        elif name == "setter":
            made.kind = "setter"
        elif name in ("contextmanager", "asynccontextmanager"):
            made.kind = "context"
        elif not isinstance(target, ast.Attribute):
            made.wrappers.append(decorator)

    def wrapped(self, function: Function) -> Value | None:
        """What the project's own decorators make of it, where they change the grad mode around it."""
        if function.wrapped is None:
            bare = Function(function.node, function.module, function.env, function.cls)
            bare.grad_mode, bare.inference = function.grad_mode, function.inference
            function.wrapped = bare
            self.walk.frames.append(Frame(function.module, function.module.env, function.env or ()))
            try:
                for decorator in reversed(function.wrappers):
                    self._wrap(function, decorator)
            finally:
                self.walk.frames.pop()
            if function.wrapped is bare:
                function.wrappers = []
        return function.wrapped if function.wrappers else None

    def _wrap(self, function: Function, decorator: ast.expr) -> None:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = getattr(target, "id", "")
        there = function.module.env.get(name)
        if isinstance(there, Lazy) and there.node is None and not _SOUNDS.search(name):
            return  # of another file: not worth reading it
        value = self.walk.force(self.walk.eval(target))
        if not isinstance(value, Function) or not _turns_gradients(value.node):
            return
        given = self.walk.eval(decorator) if isinstance(decorator, ast.Call) else value
        assert function.wrapped is not None
        made = self.walk.calls.call_value(given, [function.wrapped], {}, decorator)
        if isinstance(made, Function):
            function.wrapped = made
        else:
            function.grad_mode = None  # in which mode it runs, nobody knows

    def _class(self, node: ast.ClassDef) -> str:
        self.walk.statements.bind_name(node.name, self.define_class(node, self.walk.frame))
        return ""

    def define_class(self, node: ast.ClassDef, frame: Frame) -> Class:
        made = Class(node.name, node, frame.module)
        for base in node.bases:
            value = self.walk.force(self.walk.eval(base)) if not isinstance(base, ast.Starred) else unknown()
            if isinstance(value, Alt):
                value = value.options[0][1]
            if isinstance(value, Ext):
                made.outside.append(value.name)
            made.bases.append(value)
        for decorator in node.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            if getattr(target, "attr", getattr(target, "id", "")) == "dataclass":
                made.dataclass = True
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                function = self.define(statement, frame, made)
                there = made.attrs.get(statement.name)
                if not (isinstance(function, Function) and function.kind == "setter" and there is not None):
                    made.attrs[statement.name] = function
            elif isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        made.attrs[target.id] = (
                            self.walk.eval(statement.value)
                            if isinstance(statement.value, (ast.Constant, ast.Name, ast.Attribute))
                            else Lazy(frame.module, target.id, statement.value)
                        )
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if statement.value is not None:
                    made.attrs[statement.target.id] = Lazy(frame.module, statement.target.id, statement.value)
            elif isinstance(statement, ast.ClassDef):
                made.attrs[statement.name] = self.define_class(statement, frame)
        return made

    def _import(self, node: ast.Import) -> str:
        for alias in node.names:
            found = self.walk.project.find(self.walk.frame.module, alias.name, 0)
            if found is None:
                value: Value = Ext(alias.name if alias.asname else alias.name.partition(".")[0])
            elif alias.asname or "." not in alias.name:
                value = ModuleValue(found)
            else:
                top = self.walk.project.find(self.walk.frame.module, alias.name.partition(".")[0], 0)
                value = ModuleValue(top) if top is not None else Ext(alias.name.partition(".")[0])
            self.walk.statements.bind_name(alias.asname or alias.name.partition(".")[0], value)
        return ""

    def _import_from(self, node: ast.ImportFrom) -> str:
        name = node.module or ""
        found = self.walk.project.find(self.walk.frame.module, name, node.level)
        for alias in node.names:
            if alias.name == "*":
                if found is not None and len(self.walk.frame.module.stars) < 8:
                    self.walk.frame.module.stars.append(
                        found
                    )  # looked into when a name is found nowhere else
                continue
            if found is None:
                dotted = f"{name}.{alias.name}" if name else alias.name
                value: Value = Ext(("." * node.level) + dotted)
                if alias.name == "TYPE_CHECKING":
                    value = Const(False)
            else:
                value = Lazy(found, alias.name)
            self.walk.statements.bind_name(alias.asname or alias.name, value)
        return ""

    def declare(self, module: Any) -> None:
        """What an imported module defines, without running it: assignments wait until they are looked at."""
        if module.declared:
            return
        module.declared = True
        self.walk.frames.append(Frame(module, module.env))
        journals, self.walk.journals = (
            self.walk.journals,
            [],
        )  # what a module defines, it defines on every path
        try:
            self._declare(module.tree.body, module, 0)
        finally:
            self.walk.frames.pop()
            self.walk.journals = journals

    def _declare(self, body: list[ast.stmt], module: Any, deep: int) -> None:
        statement: Any
        for statement in body:
            kind = type(statement)
            if kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
                module.env[statement.name] = Lazy(module, statement.name, statement)
            elif kind in (ast.Import, ast.ImportFrom):
                self.walk.do(statement)
            elif kind is ast.Assign:
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        module.env[target.id] = Lazy(module, target.id, statement.value)
            elif kind is ast.AnnAssign and isinstance(statement.target, ast.Name) and statement.value:
                module.env[statement.target.id] = Lazy(module, statement.target.id, statement.value)
            elif kind in (ast.If, ast.Try) and deep < 3:
                if kind is ast.If and _is_main(statement.test):
                    continue
                if kind is ast.If and "TYPE_CHECKING" in (
                    getattr(statement.test, "id", ""),
                    getattr(statement.test, "attr", ""),
                ):
                    self._declare(statement.orelse, module, deep + 1)
                    continue
                # Later ones win; what is under `else` or `except` is the fallback.
                for part in ("orelse", "body") if kind is ast.If else ("body",):
                    self._declare(getattr(statement, part), module, deep + 1)


def _turns_gradients(node: ast.AST) -> bool:
    return any(
        (part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")) in _MODES
        for part in ast.walk(node)
    )


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
