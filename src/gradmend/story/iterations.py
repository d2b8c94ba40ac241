"""A backward() of a later iteration than the forward that it needs: by state carried over, or a part made once.

Told from the call chains of the save, the write and the backward, and from the source of the loop that holds them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gradmend.model import Conflict, Frame
from gradmend.story.source import parse, statement_of

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CUT = frozenset({"item", "detach", "tolist", "numpy", "float", "int", "len"})


@dataclass(frozen=True)
class Later:
    """`how` the graph of before the write is reached; "" where the save's line is not known."""

    how: Literal["carried", "once", ""]
    home: str  # what runs again: "the loop on line 6", "`closure`"
    names: tuple[str, ...] = ()  # what is carried over
    made: Frame | None = None  # the line that ran once
    pair: bool = False  # an LSTM's state: a tuple
    none: bool = False  # it is None before the first iteration

    @property
    def run(self) -> str:
        return "iteration" if "loop" in self.home else "call"

    @property
    def detached(self) -> str:
        """`h = h.detach()`"""
        form = "tuple(t.detach() for t in {0})" if self.pair else "{0}.detach()"
        return f"`{', '.join(self.names)} = {', '.join(form.format(n) for n in self.names)}`"


def later(conflict: Conflict) -> Later | None:
    """None where the write lies between the save and the backward of one iteration, or that can't be seen."""
    if not conflict.writes or not conflict.asked or conflict.rule not in ("GM104", "GM105", "GM203"):
        return None
    asked, wrote = _path(conflict.asked), _path(conflict.writes[0].site.users)
    saved = _path(conflict.saved.site.users) if conflict.saved is not None else []
    level = next(
        (i for i, (a, w) in enumerate(zip(asked, wrote, strict=False)) if _spot(a) != _spot(w)), None
    )
    if level is None:
        if 0 < len(wrote) < len(asked):  # step(closure), which calls backward()
            if [*map(_spot, saved[: len(wrote)])] == [*map(_spot, wrote)]:
                return None
            name = asked[len(wrote)].function.rpartition(".")[2]
            return Later("once" if saved else "", f"`{name}`", made=saved[-1] if saved else None)
        return None
    a, w = asked[level], wrote[level]
    if (a.file, a.function) != (w.file, w.function):
        return None
    s = (
        saved[level]
        if len(saved) > level and [*map(_spot, saved[:level])] == [*map(_spot, asked[:level])]
        else None
    )
    if s is not None and (s.file, s.function) != (a.file, a.function):
        s = None
    if _order(w) < _order(a) and (s is None or _order(s) <= _order(w)):
        return None  # the write is in between
    return _in_loop(asked, wrote, saved, level)


def parted(conflict: Conflict) -> tuple[Frame | None, Frame, Frame] | None:
    """The lines of the save, the write and the backward where their ways part: the callers' lines, where a helper
    does both. The save's is None where it is not known."""
    asked, wrote = _path(conflict.asked), _path(conflict.writes[0].site.users)
    saved = _path(conflict.saved.site.users) if conflict.saved is not None else []
    pairs = enumerate(zip(asked, wrote, strict=False))
    level = next((i for i, (a, w) in pairs if _spot(a) != _spot(w)), None)
    if level is None:
        return None
    a, s = asked[level], saved[level] if len(saved) > level else None
    if s is not None and (s.file, s.function) != (a.file, a.function):
        s = saved[-1]
    return s, wrote[level], a


def at_line(frame: Frame) -> Later | None:
    """From the line of the backward alone: a loop that carries something over, and steps below that line."""
    for loop in _loops(frame)[:1]:
        steps = [
            n.lineno
            for n in ast.walk(loop)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "step"
        ]
        names = _carried(loop, None)
        if steps and min(steps) >= frame.line and names:
            pair, none = _state(frame, loop, names)
            return Later("", f"the loop on line {loop.lineno}", names, pair=pair, none=none)
    return None


def _in_loop(asked: list[Frame], wrote: list[Frame], saved: list[Frame], level: int) -> Later | None:
    for i in range(level, -1, -1):
        loop = next((n for n in _loops(asked[i]) if n in _loops(wrote[i])), None)
        if loop is None:
            continue
        home = f"the loop on line {loop.lineno}"
        here = saved[i] if len(saved) > i and saved[i].file == asked[i].file else None
        inside = here is not None and loop in _loops(here)
        names = _carried(loop, here.line if here is not None and inside else None)
        if here is None or inside:
            pair, none = _state(asked[i], loop, names)
            return Later("carried" if inside else "", home, names, pair=pair, none=none)
        return Later("once", home, made=here)
    return None


def _path(users: Sequence[Frame]) -> list[Frame]:
    """Outermost line first."""
    return list(reversed(users))


def _spot(frame: Frame) -> tuple[str, str, int, int]:
    return frame.file, frame.function, *_order(frame)


def _order(frame: Frame) -> tuple[int, int]:
    return frame.line, frame.col or 0


def _loops(frame: Frame) -> list[ast.For | ast.AsyncFor | ast.While]:
    """Those around this line in its function, innermost first."""
    found = statement_of(frame)
    if found is None:
        return []
    source, child = found[0], found[1]
    loops: list[ast.For | ast.AsyncFor | ast.While] = []
    node: ast.AST = child
    for up in source.ancestors(child):
        if isinstance(up, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
            break
        if isinstance(up, _LOOPS) and node in up.body:
            loops.append(up)
        node = up
    return loops


def _carried(loop: ast.For | ast.AsyncFor | ast.While, since: int | None) -> tuple[str, ...]:
    """Names that an iteration reads before it makes them anew, from what the line `since` makes."""
    bound = (
        {ast.unparse(n) for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
        if not isinstance(loop, ast.While)
        else set()
    )
    flows: set[str] = set()
    found: dict[str, None] = {}
    for statement in _assignments(loop):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        made = {ast.unparse(n) for t in targets for n in _names(t)} - bound
        value = statement.value
        read = (
            {ast.unparse(n) for n in ast.walk(value) if isinstance(n, ast.Name | ast.Attribute)}
            if value
            else set()
        )
        if isinstance(statement, ast.AugAssign):
            read |= made
        on = since is None or statement.lineno <= since <= (statement.end_lineno or statement.lineno)
        if value is None or _is_number(value) or not (on or read & flows):
            continue
        flows |= made
        found |= dict.fromkeys(n for n in sorted(made) if _read_before(loop, n, statement))
    return tuple(found)


def _assignments(loop: ast.AST) -> Iterator[ast.Assign | ast.AugAssign | ast.AnnAssign]:
    inside = [n for n in ast.walk(loop) if isinstance(n, ast.Assign | ast.AugAssign | ast.AnnAssign)]
    yield from sorted(inside, key=lambda n: n.lineno)


def _names(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _names(element)
    elif isinstance(target, ast.Name | ast.Attribute):
        yield target


def _is_number(value: ast.expr) -> bool:
    """`loss.item()`, a detached state: no graph goes on from it."""
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(value, ast.Constant) or (
        called is not None and ast.unparse(called).rpartition(".")[2] in _CUT
    )


def _read_before(loop: ast.For | ast.AsyncFor | ast.While, name: str, made: ast.stmt) -> bool:
    end = made.end_lineno or made.lineno
    for node in (n for part in loop.body for n in ast.walk(part)):
        if not isinstance(node, ast.Name | ast.Attribute) or ast.unparse(node) != name or node.lineno > end:
            continue
        if isinstance(node.ctx, ast.Load) or (isinstance(made, ast.AugAssign) and node is made.target):
            return True
    return False


def _state(frame: Frame, loop: ast.AST, names: tuple[str, ...]) -> tuple[bool, bool]:
    """Whether it is an LSTM's pair (a cell's `h, c = cell(...)` is named one by one), and whether it is None at first."""
    source = parse(frame.file)
    bound: dict[str, list[ast.expr]] = {}  # in the whole file, by the last word of the name
    for n in ast.walk(source.tree) if source is not None else ():
        if isinstance(n, ast.Assign | ast.AnnAssign) and n.value is not None:
            for target in n.targets if isinstance(n, ast.Assign) else [n.target]:
                bound.setdefault(_last(target), []).append(n.value)
    values = [v for n in names for v in bound.get(n.rpartition(".")[2], ())]
    pair = any(isinstance(v, ast.Tuple) for v in values)
    for statement in _assignments(loop):
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            made = [ast.unparse(n) for t in statement.targets for n in _names(t)]
            called = statement.value.func
            layers = [called, *(v.func for v in bound.get(_last(called), ()) if isinstance(v, ast.Call))]
            words = [ast.unparse(layer).lower() for layer in layers]
            lstm = any("lstm" in w and "cell" not in w for w in words)
            pair = pair or (lstm and sum(n in names for n in made) == 1)
    return pair, any(isinstance(v, ast.Constant) and v.value is None for v in values)


def _last(name: ast.expr) -> str:
    return ast.unparse(name).rpartition(".")[2]
