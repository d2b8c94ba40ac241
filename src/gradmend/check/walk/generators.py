"""Generators: what takes their values runs where they yield, as in Python, and not after they have ended."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradmend.check.values import Const, Dict, Function, Instance, Seq, Value

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class Generators:
    __slots__ = ("_known", "walk")

    def __init__(self, walk: Walker) -> None:
        self.walk = walk
        self._known: dict[int, bool] = {}

    def yields(self, function: Function) -> bool:
        """Does calling it make a generator?"""
        key = id(function.node)
        if key not in self._known:
            self._known[key] = isinstance(function.node.body, list) and _has_yield(function.node)
        return self._known[key]

    def make(self, function: Function, args: list[Value], keywords: dict[str, Value]) -> Instance:
        made = Instance(None, "generator")
        made.attrs = {"function": function, "args": Seq(list(args)), "keywords": Dict(dict(keywords))}
        return made

    def counted(self, generator: Instance) -> Instance:
        """enumerate() of it."""
        made = Instance(None, "generator")
        made.attrs = {**generator.attrs, "counted": Const(True)}
        return made

    def behind(self, value: Value, node: ast.AST) -> Instance | None:
        """The generator that a loop over it runs, if it is one or its __iter__ makes one."""
        if isinstance(value, Instance):
            if value.nn == "generator":
                return value
            method = self.walk.classes.method_of(value, "__iter__")
            if method is not None:
                made = self.walk.calls.call_value(method, [], {}, node)
                if isinstance(made, Instance) and made.nn == "generator":
                    return made
        return None

    def run(self, generator: Instance, node: ast.AST, each: Callable[[Value], None]) -> None:
        """Walk it; each value is taken in the frame that asked."""
        outer, taken = self.walk.frame, 0
        function, args, keywords = (generator.attrs[k] for k in ("function", "args", "keywords"))
        assert isinstance(function, Function) and isinstance(args, Seq) and isinstance(keywords, Dict)

        def block(value: Value) -> None:
            nonlocal taken
            if "counted" in generator.attrs:
                value = Seq([Const(taken, True), value], "tuple")
            taken += 1
            self.walk.frames.append(outer)
            try:
                each(value)
            finally:
                self.walk.frames.pop()

        self.walk.calls.call_function(function, args.items, keywords.items, node, block)


def _has_yield(function: ast.AST) -> bool:
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, _SCOPES):
            todo += ast.iter_child_nodes(node)
    return False
