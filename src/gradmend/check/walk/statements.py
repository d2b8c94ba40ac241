"""Statements: assignments, ways out, with blocks."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gradmend.check.values import NONE, Const, Dict, Seq, Tensor, Value, unknown
from gradmend.check.walk.ending import ends_program

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Statements:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def table(self) -> dict[type, Callable[[Any], str]]:
        """Which of these takes which kind of syntax."""
        return {
            ast.Assign: self._assign,
            ast.AnnAssign: self._ann_assign,
            ast.AugAssign: self._aug_assign,
            ast.Expr: self._expr,
            ast.Return: self._return,
            ast.Raise: self._raise,
            ast.Break: self._break,
            ast.Continue: self._continue,
            ast.Global: self._global,
            ast.Nonlocal: self._global,
            ast.Delete: self._delete,
            ast.Assert: self._assert,
        }

    def _assign(self, node: ast.Assign) -> str:
        value = self.walk.eval(node.value)
        if isinstance(value, Tensor) and not value.name and isinstance(node.targets[0], ast.Name):
            value.name = node.targets[0].id
        if not isinstance(node.value, (ast.Call, ast.BinOp)) or (isinstance(value, Tensor) and value.bound):
            self.share(value)
        if isinstance(value, Tensor):
            value.bound = True
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                self.walk.parts.shifted(target, node.value, value, node)
            self.bind(target, value)
        return ""

    def share(self, value: Value) -> None:
        """Another name may now reach its memory."""
        if isinstance(value, Tensor):
            for storage in value.storages:
                storage.shared = True

    def _ann_assign(self, node: ast.AnnAssign) -> str:
        if node.value is not None:
            self.bind(node.target, self.walk.eval(node.value))
        return ""

    def bind(self, target: ast.expr, value: Value) -> None:
        kind = type(target)
        if kind is ast.Name:
            self.bind_name(target.id, value)  # type: ignore[attr-defined]
        elif kind is ast.Attribute:
            self.share(value)
            self.walk.attributes.set_attribute(self.walk.eval(target.value), target.attr, value, target)  # type: ignore[attr-defined]
        elif kind is ast.Subscript:
            self.share(value)
            self.walk.parts.set_item(target, value)  # type: ignore[arg-type]
        elif kind in (ast.Tuple, ast.List):
            self._unpack(target.elts, value)  # type: ignore[attr-defined]
        elif kind is ast.Starred:
            self.bind(target.value, Seq([], rest=self.walk.iteration.element(value)))  # type: ignore[attr-defined]

    def bind_name(self, name: str, value: Value) -> None:
        frame = self.walk.frame
        if frame.own is not None and isinstance(frame.own, Dict) and name in frame.own.items:
            where = frame.own.items[name]
            if isinstance(where, Const) and where.value == "global":
                self._give(frame.module.env, name, value)
                return
            for env in frame.outer:
                if name in env:
                    self._give(env, name, value)
                    return
        self._give(frame.env, name, value)

    def _give(self, home: dict[str, Value], name: str, value: Value) -> None:
        self.walk.cells.bound(home, name, value)
        self.walk.store(home, name, value)

    def _unpack(self, targets: list[ast.expr], value: Value) -> None:
        star = next((i for i, t in enumerate(targets) if isinstance(t, ast.Starred)), None)
        if star is None:
            for target, item in zip(targets, self.walk.iteration.split(value, len(targets)), strict=True):
                self.bind(target, item)
            return
        after = len(targets) - star - 1
        if isinstance(value, Seq) and value.rest is None and len(value.items) >= len(targets) - 1:
            items = value.items
            parts = [*items[:star], Seq(items[star : len(items) - after]), *items[len(items) - after :]]
        else:
            parts = [self.walk.iteration.element(value) for _ in targets]
            parts[star] = Seq([], rest=self.walk.iteration.element(value))
        for target, part in zip(targets, parts, strict=False):
            self.bind(target.value if isinstance(target, ast.Starred) else target, part)

    def _aug_assign(self, node: ast.AugAssign) -> str:
        self.walk.parts.augment(node)
        return ""

    def _expr(self, node: ast.Expr) -> str:
        if not isinstance(node.value, ast.Constant):
            self.walk.eval(node.value)
        return "raise" if ends_program(node) else ""

    def _return(self, node: ast.Return) -> str:
        value = self.walk.eval(node.value) if node.value is not None else NONE
        self.walk.frame.returns.append((self.walk.path, value))
        return "return"

    def _raise(self, node: ast.Raise) -> str:
        return "raise"

    def _break(self, node: ast.stmt) -> str:
        return "break"

    def _continue(self, node: ast.stmt) -> str:
        return "continue"

    def _global(self, node: Any) -> str:
        frame = self.walk.frame
        if frame.own is None or not isinstance(frame.own, Dict):
            frame.own = Dict({})
        word = Const("global" if isinstance(node, ast.Global) else "nonlocal")
        for name in node.names:
            frame.own.items[name] = word
        return ""

    def _delete(self, node: ast.Delete) -> str:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.walk.store(self.walk.frame.env, target.id, unknown(target.id))
            elif isinstance(target, ast.Subscript):
                owner = self.walk.eval(target.value)
                if isinstance(owner, Seq) and isinstance(target.slice, ast.Slice):
                    self.walk.hold(owner, [], None)  # del memory[:]
                elif isinstance(owner, Seq) and owner.items:
                    self.walk.hold(owner, owner.items[:-1])
        return ""

    def _assert(self, node: ast.Assert) -> str:
        if isinstance(node.test, ast.Call):
            self.walk.eval(node.test)
        return "raise" if ends_program(node) else ""
