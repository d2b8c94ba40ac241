"""A leaf written in grad mode under heal(): an update of it is made outside the graph.

PyTorch refuses the write because it could mean two things. What the program reads afterwards tells which: a graph that
was begun before the write and reads the leaf after it makes the write a part of the computation, and heal() stops there.
A write that no graph under way reads (a manual step, an average, a first value) is an update.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from gradmend.capture.graph import nodes
from gradmend.capture.graph.calls import BackwardCall, Roots
from gradmend.capture.ledger import scopes
from gradmend.capture.ledger.entries import next_number
from gradmend.capture.sites import Raw, is_user, raw_here

_LEAF = re.compile(r"a (view of a )?leaf Variable that requires grad is being used in an in-place operation")
AFTER_BACKWARD = "taken as an update, outside the graph: a backward() has run, and no graph has begun since"
UNREAD = "taken as an update, outside the graph: no graph that was under way reads the written value"
FIRST_VALUE = "taken as the first value of a parameter, outside the graph: no graph has begun yet"
COMPUTED = "the graph reads the written value, so the write is part of the computation: heal() can't make it, only a new tensor can"


@dataclass(frozen=True, slots=True)
class _Pending:
    leaf: weakref.ref[torch.Tensor]
    number: int  # of the first node made after the write
    forward: bool  # inside a module's forward, or a function that returns what it writes
    error: RuntimeError
    raw: Raw
    scope: scopes.Scope

    def report(self) -> None:
        if self.scope.refused is not None:
            self.scope.refused(self.error, self.raw)


_pending: dict[int, list[_Pending]] = {}  # by thread: writes since its last backward
_ended: dict[int, int] = {}  # by thread: the number of the first node made after its last backward


def forget() -> None:
    """No backward read what is left."""
    while _pending:
        for write in _pending.popitem()[1]:
            write.report()
    _ended.clear()


def is_update(error: RuntimeError, args: Sequence[Any]) -> bool:
    """Whether the write that raised this may be made outside the graph: heal() is on, and nothing shows that the
    written value is part of a computation."""
    scope = scopes.current()
    if scope is None or scope.policy != "heal" or scope.refused is None or _LEAF.search(str(error)) is None:
        return False
    t = next((a for a in args if isinstance(a, torch.Tensor)), None)
    if t is None:
        return False
    leaf = t if t._base is None else t._base
    thread, number = get_ident(), next_number()
    last = _ended.get(thread)
    forward = _in_forward() or returns_it(_writer())
    if last is None and not isinstance(leaf, torch.nn.Parameter):
        return False  # a first value, or the begin of a computation: both fit
    write = _Pending(weakref.ref(leaf), number, forward, error, raw_here(), scope)
    if last is not None and number == last:
        error.meaning = AFTER_BACKWARD  # type: ignore[attr-defined]
        write.report()
        return True
    first = last is None and not forward and not _holds_a_graph(args[1:])
    error.meaning = FIRST_VALUE if first else UNREAD  # type: ignore[attr-defined]
    _pending.setdefault(thread, []).append(write)
    return True


def _writer() -> FrameType | None:
    """The program's innermost frame."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user(frame.f_code):
        frame = frame.f_back
    return frame


def returns_it(frame: FrameType | None) -> bool:
    """Whether the function that writes at this frame's line returns the name that it writes to."""
    return frame is not None and returned(frame.f_code.co_filename, frame.f_lineno)


@lru_cache(maxsize=256)
def returned(file: str, line: int) -> bool:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return False
    around = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        and n.lineno <= line <= (n.end_lineno or line)
    ]
    if not around:
        return False
    home = max(around, key=lambda n: n.lineno)
    at = [n for n in ast.walk(home) if isinstance(n, ast.stmt) and n.lineno == line and n is not home]
    names = {name for statement in at for name in _written(statement)}
    values = [n.value for n in ast.walk(home) if isinstance(n, ast.Return) and n.value is not None]
    return any(isinstance(n, ast.Name) and n.id in names for value in values for n in ast.walk(value))


def _written(statement: ast.stmt) -> set[str]:
    """The names that a statement writes into: `w` of `w *= s`, `w[0] = 0` and `w.view(-1).mul_(s)`."""
    targets: list[ast.AST] = []
    if isinstance(statement, ast.AugAssign):
        targets = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = [t for t in statement.targets if not isinstance(t, ast.Name)]
        targets += [statement.value] if isinstance(statement.value, ast.Call) else []
    elif isinstance(statement, ast.Expr):
        targets = [statement.value]
    found = set()
    for target in targets:
        while isinstance(target, ast.Attribute | ast.Subscript | ast.Call):
            target = target.func if isinstance(target, ast.Call) else target.value
        if isinstance(target, ast.Name) and target.id != "self":
            found.add(target.id)
    return found


def _holds_a_graph(args: Sequence[Any]) -> bool:
    return any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)


def _in_forward() -> bool:
    """Whether the nearest functions of the program are a module's forward, or called by one."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "forward" and is_user(frame.f_code):
            return isinstance(frame.f_locals.get("self"), torch.nn.Module)
        frame = frame.f_back
    return False


def watch(call: BackwardCall, roots: Roots, grads: Any) -> Any:
    """A watcher of backward_calls: raises where its graph reads what was taken for an update."""
    for write in _pending.pop(get_ident(), ()):
        if _is_read(write, roots):
            write.error.meaning = COMPUTED  # type: ignore[attr-defined]
            write.error.raw = write.raw  # type: ignore[attr-defined]
            raise write.error
        write.report()
    return _at_end


def _at_end(call: BackwardCall, roots: Roots) -> None:
    _ended[get_ident()] = next_number()


def _is_read(write: _Pending, roots: Roots) -> bool:
    leaf = write.leaf()
    if leaf is None:
        return False
    last = _ended.get(get_ident(), -1)
    begun, read = False, False
    for node, below in nodes.walk([n for n in map(nodes.start, roots) if n is not None]):
        if hasattr(node, "variable"):
            continue
        number = node._sequence_nr()
        begun = begun or last <= number < write.number
        read = read or (
            number >= write.number and any(getattr(b, "variable", None) is leaf for b, _ in below)
        )
    return read and (begun or write.forward)
