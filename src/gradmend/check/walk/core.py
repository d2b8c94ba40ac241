"""What all parts of the walk share: where we are, on which path, in which grad mode, and how much walking is left."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gradmend.check.findings import Finding, Place
from gradmend.check.ledger import Ledger, compatible
from gradmend.check.project import Module, Project
from gradmend.check.values import (
    Alt,
    Class,
    Const,
    Dict,
    Function,
    Instance,
    Lazy,
    Opaque,
    Path,
    Seq,
    Tensor,
    Value,
    unknown,
)

MOST_DEEP = 12  # calls inside calls
MOST_OPTIONS = 6


class Enough(Exception):
    """The walk's allowance is used up; what was found stands."""


class Frame:
    __slots__ = ("cls", "env", "function", "loops", "module", "outer", "own", "returns", "yields")

    def __init__(
        self, module: Module, env: dict[str, Value], outer: tuple[dict[str, Value], ...] = ()
    ) -> None:
        self.module = module
        self.env = env
        self.outer = outer
        self.returns: list[tuple[Path, Value]] = []
        self.yields: list[Value] = []
        self.function: Function | None = None
        self.cls: Class | None = None
        self.loops = 0
        self.own: Value | None = None


class Core:
    def __init__(self, project: Project, allowance: int = 60_000) -> None:
        self.project = project
        self.ledger = Ledger()
        self.path: Path = ()
        self.grad_mode: bool | None = True
        self.frames: list[Frame] = []
        self.place = Place("", 1, 1, 1, 1)
        self.left = allowance
        self.journals: list[list[tuple[dict, Any, Any]]] = []
        self.visited: set[int] = set()  # id of each FunctionDef that was walked
        self.active: list[int] = []  # of those, which are running now
        self.statement: ast.stmt | None = None
        self.edits: dict = {}
        self.holds: list[Any] = []
        self.models: list[Opaque] = []  # called, but not seen
        self.deepest = MOST_DEEP
        self.assumed = False  # nothing is known of who calls: every backward is assumed

    # The parts of the walk that others call; each is defined in its own file.
    eval: Callable[[ast.expr], Value]
    run_block: Callable[[list[ast.stmt]], str]
    call: Callable[..., Value]

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def spend(self, n: int = 1) -> None:
        self.left -= n
        if self.left < 0:
            raise Enough

    def at(self, node: ast.AST) -> Place:
        """The place of a piece of source in the frame that is running."""
        line = getattr(node, "lineno", 1)
        column = getattr(node, "col_offset", 0) + 1
        return Place(
            self.frame.module.file,
            line,
            column,
            getattr(node, "end_lineno", None) or line,
            (getattr(node, "end_col_offset", None) or column) + 1,
        )

    def told(self, finding: Finding) -> None:
        self.ledger.told(finding)

    # --- stores that can be taken back when another arm is walked

    _GONE = object()

    def store(self, target: dict, key: Any, value: Any) -> None:
        if self.journals:
            self.journals[-1].append((target, key, target.get(key, self._GONE)))
        target[key] = value

    def arm(
        self, condition: Any, side: bool, walk: Callable[[], str]
    ) -> tuple[str, list[tuple[dict, Any, Any]]]:
        """Walk one arm of a branch; its stores are taken back and returned as (dict, key, new value)."""
        before = self.path
        self.path = (*before, (condition, side))
        self.journals.append([])
        try:
            status = walk()
        finally:
            self.path = before
            journal = self.journals.pop()
            changed: dict[tuple[int, Any], tuple[dict, Any, Any]] = {}
            for target, key, _ in journal:
                changed[(id(target), _key(key))] = (target, key, target.get(key, self._GONE))
            for target, key, old in reversed(journal):
                if old is self._GONE:
                    target.pop(key, None)
                else:
                    target[key] = old
        return status, list(changed.values())

    def join(self, condition: Any, arms: list[tuple[bool, list[tuple[dict, Any, Any]]]]) -> None:
        """After a branch: each name that an arm changed holds what that arm gave it."""
        touched: dict[tuple[int, Any], tuple[dict, Any, dict[bool, Any]]] = {}
        for side, changes in arms:
            for target, key, new in changes:
                touched.setdefault((id(target), _key(key)), (target, key, {}))[2][side] = new
        sides = [side for side, _ in arms]
        for target, key, news in touched.values():
            old = target.get(key, self._GONE)
            options: list[tuple[Path, Any]] = []
            for side in sides:
                value = news.get(side, old)
                if value is not self._GONE:
                    options.append((((condition, side),), value))
            if options:
                self.store(target, key, self.either(options))

    def either(self, options: list[tuple[Path, Value]]) -> Value:
        """One value of several, each with the arms it holds on; nested choices are laid flat."""
        flat: list[tuple[Path, Value]] = []
        for path, value in options:
            for more, v in value.options if isinstance(value, Alt) else [((), value)]:
                if compatible(path, more):
                    flat.append((merged(path, more), v))
        if not flat:
            return unknown()
        first = flat[0][1]
        if all(same(first, v) for _, v in flat):
            return first
        # An absent value tells less than one that is there.
        if len(flat) > MOST_OPTIONS:
            flat = [o for o in flat if not isinstance(o[1], (Const, Opaque))][:MOST_OPTIONS] or flat[
                :MOST_OPTIONS
            ]
        return Alt(flat)

    @contextmanager
    def on(self, path: Path) -> Iterator[None]:
        before = self.path
        self.path = merged(before, path)
        try:
            yield
        finally:
            self.path = before

    def options(self, value: Value) -> list[tuple[Path, Value]]:
        """What it may be on the path we are on."""
        if isinstance(value, Alt):
            return [o for o in value.options if compatible(o[0], self.path)]
        return [((), value)]

    def over(self, value: Value, do: Callable[[Value], Value]) -> Value:
        """Do it with each option, on that option's path."""
        if not isinstance(value, Alt):
            return do(value)
        results: list[tuple[Path, Value]] = []
        for path, option in self.options(value):
            with self.on(path):
                results.append((path, do(option)))
        return self.either(results) if results else unknown()

    @contextmanager
    def mode(self, grad: bool | None) -> Iterator[None]:
        before = self.grad_mode
        self.grad_mode = grad
        try:
            yield
        finally:
            self.grad_mode = before

    # --- tensors in values

    def tensors(self, value: Value | None, deep: int = 3) -> list[tuple[Path, Tensor]]:
        """Every tensor in a value, containers looked into, with the arms on which it is there."""
        if value is None:
            return []
        if isinstance(value, Tensor):
            return [((), value)]
        if isinstance(value, Opaque):
            return [((), value.as_tensor())]
        if isinstance(value, Alt):
            found: list[tuple[Path, Tensor]] = []
            for path, option in self.options(value):
                found += [(merged(path, p), t) for p, t in self.tensors(option, deep) if compatible(path, p)]
            return found
        if deep <= 0:
            return []
        if isinstance(value, Seq):
            items = [*value.items[:16], *([value.rest] if value.rest is not None else [])]
        elif isinstance(value, Dict):
            items = [*list(value.items.values())[:16], *([value.rest] if value.rest is not None else [])]
        elif isinstance(value, Instance) and value.nn in ("dist", "object"):
            items = list(value.attrs.values())[:16]
        else:
            return []
        return [pair for item in items for pair in self.tensors(item, deep - 1)]

    def force(self, value: Value) -> Value:
        """A lazy name, found out."""
        if isinstance(value, Lazy):
            return self.resolve(value)
        return value

    resolve: Callable[[Lazy], Value]


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int)) else id(key)


def merged(a: Path, b: Path) -> Path:
    if not a:
        return b
    if not b or a is b:
        return a
    have = {c for c, _ in a}
    return (*a, *(pair for pair in b if pair[0] not in have))


def same(a: Value, b: Value) -> bool:
    if a is b:
        return True
    return (
        isinstance(a, Const)
        and isinstance(b, Const)
        and type(a.value) is type(b.value)
        and a.value == b.value
    )
