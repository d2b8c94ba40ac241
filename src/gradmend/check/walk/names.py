"""Names: looked up, and found out when they are first used."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gradmend.check.project import Module
from gradmend.check.values import Alt, Const, Ext, Lazy, ModuleValue, Value, unknown
from gradmend.check.walk.frames import Frame

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

_BUILTINS = frozenset(dir(__builtins__) if not isinstance(__builtins__, dict) else __builtins__)


class Names:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def table(self) -> dict[type, Callable[[Any], Value]]:
        """Which of these takes which kind of syntax."""
        return {
            ast.Name: self._name,
        }

    def _name(self, node: ast.Name) -> Value:
        return self.look_up(node.id)

    def look_up(self, name: str) -> Value:
        frame = self.walk.frame
        home = frame.env
        value = home.get(name)
        if value is None:
            for home in frame.outer:
                if name in home:
                    value = home[name]
                    break
            else:
                home = frame.module.env
                value = home.get(name)
                if value is None:
                    known = name in _BUILTINS and name != "__name__"
                    return Ext(f"builtins.{name}") if known else self._free(name)
        if isinstance(value, Lazy):
            value = self.resolve(value)
        if self.walk.recomputed is not None and home is not frame.env:
            self.walk.cells.read(home, name, value)
        if isinstance(value, Alt):
            options = self.walk.options(value)
            if len(options) == 1 and self.walk.present(value):
                return options[0][1]
        return value

    def _free(self, name: str) -> Value:
        if name == "TYPE_CHECKING":
            return Const(False)
        if name == "__name__":
            return Const("__main__") if self.walk.frame.module.main else unknown(name)
        made = self.starred(self.walk.frame.module, name) or unknown(name)
        self.walk.frame.module.env[name] = made
        return made

    def starred(self, module: Module, name: str, deep: int = 0) -> Value | None:
        """A name that `from x import *` may have brought."""
        for source in module.stars if deep < 3 else ():
            self.walk.definitions.declare(source)
            there = source.env.get(name) or self.starred(source, name, deep + 1)
            if there is not None:
                return self.walk.force(there)
        return None

    def resolve(self, lazy: Lazy) -> Value:
        """Found out once, then kept in the module's own names."""
        module = lazy.module
        node: Any = lazy.node
        if node is None:
            self.walk.definitions.declare(module)
            there = module.env.get(lazy.name)
            if there is None:
                inner = (
                    self.walk.project.find(module, lazy.name, 1)
                    if module.file.endswith("__init__.py")
                    else None
                )
                there = (
                    ModuleValue(inner)
                    if inner is not None
                    else self.starred(module, lazy.name) or unknown(lazy.name)
                )
                module.env[lazy.name] = there
            if there is lazy:
                return unknown(lazy.name)
            return self.resolve(there) if isinstance(there, Lazy) else there

        module.env[lazy.name] = hold = unknown(lazy.name)  # against cycles
        if len(self.walk.frames) > 40:
            return hold
        self.walk.frames.append(Frame(module, module.env))
        journals, self.walk.journals = self.walk.journals, []
        try:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                value = self.walk.definitions.define(node, self.walk.frame)
            elif isinstance(node, ast.ClassDef):
                value = self.walk.definitions.define_class(node, self.walk.frame)
            else:
                value = self.walk.eval(node)
        finally:
            self.walk.frames.pop()
            self.walk.journals = journals
        module.env[lazy.name] = value
        return value
