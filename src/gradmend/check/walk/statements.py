"""Statements: blocks, branches (both arms), loops (two iterations), with blocks, definitions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import Any

from gradmend.check.values import (
    NONE,
    Alt,
    Class,
    Const,
    Dict,
    Ext,
    Function,
    Instance,
    Lazy,
    ModuleValue,
    Opaque,
    Seq,
    Tensor,
    Value,
    unknown,
)
from gradmend.check.walk.core import Core, Frame

# Two rounds show what the second iteration does to the first; deeper nests are walked once to stay linear.
_ROUNDS = (2, 2, 2, 1)
_MOST_ITEMS = 8


class Statements(Core):
    def run_block(self, body: list[ast.stmt]) -> str:
        """How it ended: "" at its end, else "return", "raise", "break" or "continue"."""
        for statement in body:
            self.left -= 1
            if self.left < 0:
                self.spend(0)
            self.statement = statement
            do = _DO.get(type(statement))
            if do is not None:
                status = do(self, statement)
                if status:
                    return status
        return ""

    # --- assignments

    def _assign(self, node: ast.Assign) -> str:
        value = self.eval(node.value)
        if isinstance(value, Tensor) and not value.name and isinstance(node.targets[0], ast.Name):
            value.name = node.targets[0].id
        if not isinstance(node.value, (ast.Call, ast.BinOp)):
            self.share(value)
        for target in node.targets:
            self.bind(target, value)
        return ""

    def share(self, value: Value) -> None:
        """Another name may now reach its memory."""
        if isinstance(value, Tensor):
            for storage in value.storages:
                storage.shared = True

    def _ann_assign(self, node: ast.AnnAssign) -> str:
        if node.value is not None:
            self.bind(node.target, self.eval(node.value))
        return ""

    def bind(self, target: ast.expr, value: Value) -> None:
        kind = type(target)
        if kind is ast.Name:
            self.bind_name(target.id, value)  # type: ignore[attr-defined]
        elif kind is ast.Attribute:
            self.share(value)
            self.set_attribute(self.eval(target.value), target.attr, value, target)  # type: ignore[attr-defined]
        elif kind is ast.Subscript:
            self.share(value)
            self.set_item(target, value)  # type: ignore[arg-type]
        elif kind in (ast.Tuple, ast.List):
            self._unpack(target.elts, value)  # type: ignore[attr-defined]
        elif kind is ast.Starred:
            self.bind(target.value, Seq([], rest=self.element(value)))  # type: ignore[attr-defined]

    def bind_name(self, name: str, value: Value) -> None:
        frame = self.frame
        if frame.own is not None and isinstance(frame.own, Dict) and name in frame.own.items:
            where = frame.own.items[name]
            if isinstance(where, Const) and where.value == "global":
                self.store(frame.module.env, name, value)
                return
            for env in frame.outer:
                if name in env:
                    self.store(env, name, value)
                    return
        self.store(frame.env, name, value)

    def _unpack(self, targets: list[ast.expr], value: Value) -> None:
        star = next((i for i, t in enumerate(targets) if isinstance(t, ast.Starred)), None)
        if star is None:
            for target, item in zip(targets, self.split(value, len(targets)), strict=True):
                self.bind(target, item)
            return
        after = len(targets) - star - 1
        if isinstance(value, Seq) and value.rest is None and len(value.items) >= len(targets) - 1:
            items = value.items
            parts = [*items[:star], Seq(items[star : len(items) - after]), *items[len(items) - after :]]
        else:
            parts = [self.element(value) for _ in targets]
            parts[star] = Seq([], rest=self.element(value))
        for target, part in zip(targets, parts, strict=False):
            self.bind(target.value if isinstance(target, ast.Starred) else target, part)

    split: Callable[[Value, int], list[Value]]
    element: Callable[[Value], Value]
    set_attribute: Callable[..., None]
    set_item: Callable[[ast.Subscript, Value], None]
    augment: Callable[[ast.AugAssign], None]
    iterate: Callable[..., list[Value]]
    truth: Callable[[ast.expr], bool | None]
    condition: Callable[[ast.expr], tuple[Any, bool]]
    enter: Callable[..., Any]
    narrow: Callable[[ast.expr, bool], None]

    def _aug_assign(self, node: ast.AugAssign) -> str:
        self.augment(node)
        return ""

    def _expr(self, node: ast.Expr) -> str:
        if not isinstance(node.value, ast.Constant):
            self.eval(node.value)
        return ""

    # --- the ways out

    def _return(self, node: ast.Return) -> str:
        value = self.eval(node.value) if node.value is not None else NONE
        self.frame.returns.append((self.path, value))
        return "return"

    def _raise(self, node: ast.Raise) -> str:
        return "raise"

    def _break(self, node: ast.stmt) -> str:
        return "break"

    def _continue(self, node: ast.stmt) -> str:
        return "continue"

    # --- branches

    def _if(self, node: ast.If) -> str:
        known = self.truth(node.test)
        if known is not None:
            return self.run_block(node.body if known else node.orelse)
        condition, side = self.condition(node.test)
        for there, taken in self.path:
            if there == condition:
                return self.run_block(node.body if taken == side else node.orelse)
        return self.branch(
            condition, side, node.test, lambda: self.run_block(node.body), lambda: self.run_block(node.orelse)
        )

    def branch(
        self,
        condition: Any,
        side: bool,
        test: ast.expr | None,
        then: Callable[[], str],
        other: Callable[[], str],
    ) -> str:
        def first() -> str:
            if test is not None:
                self.narrow(test, True)
            return then()

        def second() -> str:
            if test is not None:
                self.narrow(test, False)
            return other()

        one, changes_one = self.arm(condition, side, first)
        two, changes_two = self.arm(condition, not side, second)
        if one and not two:
            self._keep(changes_two)
            self.path = (*self.path, (condition, not side))
            return ""
        if two and not one:
            self._keep(changes_one)
            self.path = (*self.path, (condition, side))
            return ""
        self.join(condition, [(side, changes_one), (not side, changes_two)])
        if one and two:
            return one if one == two else "continue" if "continue" in (one, two) else "return"
        return ""

    def _keep(self, changes: list[tuple[dict, Any, Any]]) -> None:
        for target, key, new in changes:
            if new is not self._GONE:
                self.store(target, key, new)

    def _match(self, node: ast.Match) -> str:
        self.eval(node.subject)
        tag = self.ledger.now()

        def case(i: int) -> str:
            if i >= len(node.cases) or i > 20:
                return ""
            for part in ast.walk(node.cases[i].pattern):
                bound = getattr(part, "name", None)
                if isinstance(bound, str):
                    self.bind_name(bound, unknown(bound))
            body = node.cases[i].body
            return self.branch(
                ("case", tag, i), True, None, partial(self.run_block, body), partial(case, i + 1)
            )

        return case(0)

    def _try(self, node: Any) -> str:
        status = self.run_block(node.body)
        for handler in node.handlers:
            if handler.name:
                self.bind_name(handler.name, unknown(handler.name))
            condition = ("except", id(handler), self.ledger.now())
            ended, changes = self.arm(condition, True, partial(self.run_block, handler.body))
            if not ended:
                self.join(condition, [(True, changes), (False, [])])
                status = ""
        if not status and node.orelse:
            status = self.run_block(node.orelse)
        if node.finalbody:
            status = self.run_block(node.finalbody) or status
        return status

    # --- loops

    def _for(self, node: Any) -> str:
        source = self.eval(node.iter)
        items = self.iterate(source, node.iter)
        return self.rounds(node, items)

    def rounds(self, node: Any, items: list[Value] | None) -> str:
        frame = self.frame
        most = _ROUNDS[min(frame.loops, len(_ROUNDS) - 1)]
        frame.loops += 1
        before = self.path
        try:
            if items is not None:
                shown = (
                    items[:_MOST_ITEMS] if len(items) <= _MOST_ITEMS and frame.loops == 1 else items[:most]
                )
            else:
                shown = [NONE] * most
            for i, item in enumerate(shown):
                if items is not None:
                    self.bind(node.target, item)
                elif self.truth(node.test) is False:
                    break
                status = self.run_block(node.body)
                self.path = before
                if status in ("return", "raise") and i == 0:
                    return status if items is None and _forever(node) else ""
                if status in ("break", "return", "raise"):
                    break
        finally:
            frame.loops -= 1
        return self.run_block(node.orelse) if node.orelse else ""

    def _while(self, node: ast.While) -> str:
        return self.rounds(node, None)

    # --- contexts

    def _with(self, node: Any) -> str:
        leaves = []
        mode = self.grad_mode
        for item in node.items:
            value = self.eval(item.context_expr)
            inner, leave = self.enter(value)
            leaves.append(leave)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, inner)
        try:
            return self.run_block(node.body)
        finally:
            for leave in reversed(leaves):
                if leave is not None:
                    leave()
            self.grad_mode = mode

    # --- definitions and imports

    def _def(self, node: Any) -> str:
        self.bind_name(node.name, self.define(node, self.frame))
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

    def _class(self, node: ast.ClassDef) -> str:
        self.bind_name(node.name, self.define_class(node, self.frame))
        return ""

    def define_class(self, node: ast.ClassDef, frame: Frame) -> Class:
        made = Class(node.name, node, frame.module)
        for base in node.bases:
            value = self.force(self.eval(base)) if not isinstance(base, ast.Starred) else unknown()
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
                            self.eval(statement.value)
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
            found = self.project.find(self.frame.module, alias.name, 0)
            if found is None:
                value: Value = Ext(alias.name if alias.asname else alias.name.partition(".")[0])
            elif alias.asname or "." not in alias.name:
                value = ModuleValue(found)
            else:
                top = self.project.find(self.frame.module, alias.name.partition(".")[0], 0)
                value = ModuleValue(top) if top is not None else Ext(alias.name.partition(".")[0])
            self.bind_name(alias.asname or alias.name.partition(".")[0], value)
        return ""

    def _import_from(self, node: ast.ImportFrom) -> str:
        name = node.module or ""
        found = self.project.find(self.frame.module, name, node.level)
        for alias in node.names:
            if alias.name == "*":
                if found is not None and len(self.frame.module.stars) < 8:
                    self.frame.module.stars.append(found)  # looked into when a name is found nowhere else
                continue
            if found is None:
                dotted = f"{name}.{alias.name}" if name else alias.name
                value: Value = Ext(("." * node.level) + dotted)
            else:
                value = Lazy(found, alias.name)
            self.bind_name(alias.asname or alias.name, value)
        return ""

    def declare(self, module: Any) -> None:
        """What an imported module defines, without running it: assignments wait until they are looked at."""
        if module.declared:
            return
        module.declared = True
        self.frames.append(Frame(module, module.env))
        journals, self.journals = self.journals, []  # what a module defines, it defines on every path
        try:
            self._declare(module.tree.body, module, 0)
        finally:
            self.frames.pop()
            self.journals = journals

    def _declare(self, body: list[ast.stmt], module: Any, deep: int) -> None:
        statement: Any
        for statement in body:
            kind = type(statement)
            if kind in (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
                module.env[statement.name] = Lazy(module, statement.name, statement)
            elif kind in (ast.Import, ast.ImportFrom):
                _DO[kind](self, statement)
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

    def _global(self, node: Any) -> str:
        frame = self.frame
        if frame.own is None or not isinstance(frame.own, Dict):
            frame.own = Dict({})
        word = Const("global" if isinstance(node, ast.Global) else "nonlocal")
        for name in node.names:
            frame.own.items[name] = word
        return ""

    def _delete(self, node: ast.Delete) -> str:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.store(self.frame.env, target.id, unknown(target.id))
            elif isinstance(target, ast.Subscript):
                owner = self.eval(target.value)
                if isinstance(owner, Seq) and isinstance(target.slice, ast.Slice):
                    owner.items.clear()  # del memory[:]
                    owner.rest = None
                elif isinstance(owner, Seq) and owner.items:
                    owner.items.pop()
        return ""

    def _assert(self, node: ast.Assert) -> str:
        if isinstance(node.test, ast.Call):
            self.eval(node.test)
        return ""


def _forever(node: Any) -> bool:
    return isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and bool(node.test.value)


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


_DO: dict[type, Callable[..., str]] = {
    ast.Assign: Statements._assign,
    ast.AnnAssign: Statements._ann_assign,
    ast.AugAssign: Statements._aug_assign,
    ast.Expr: Statements._expr,
    ast.Return: Statements._return,
    ast.Raise: Statements._raise,
    ast.Break: Statements._break,
    ast.Continue: Statements._continue,
    ast.If: Statements._if,
    ast.Match: Statements._match,
    ast.Try: Statements._try,
    ast.TryStar: Statements._try,
    ast.For: Statements._for,
    ast.AsyncFor: Statements._for,
    ast.While: Statements._while,
    ast.With: Statements._with,
    ast.AsyncWith: Statements._with,
    ast.FunctionDef: Statements._def,
    ast.AsyncFunctionDef: Statements._def,
    ast.ClassDef: Statements._class,
    ast.Import: Statements._import,
    ast.ImportFrom: Statements._import_from,
    ast.Global: Statements._global,
    ast.Nonlocal: Statements._global,
    ast.Delete: Statements._delete,
    ast.Assert: Statements._assert,
}
__all__ = ["Instance", "Opaque", "Statements"]
