"""The carrier of a second backward: the Python object that held the edge into the graph that an earlier one used up.

From the used-up nodes forward to the first node made after that backward, and from the edge between them to the place
that held the tensor when the earlier backward ended (capture/graph/carriers.py).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gradmend.capture.graph import carriers
from gradmend.capture.graph.calls import BackwardCall, who_ran
from gradmend.capture.graph.carriers import Slot
from gradmend.capture.graph.nodes import edges
from gradmend.capture.sites import resolve
from gradmend.model import Carrier, Frame, Site
from gradmend.story.failures import nodes
from gradmend.story.failures.stores import Store, first_of_chain, stored_by, stores_of
from gradmend.story.source import statement_of

_NEAR = 60  # nodes below the edge that are asked for the line that made them
# The nodes of in-place writes that overwrite a tensor and keep its history: no gradient goes through them.
_OVERWRITING = re.compile(
    r"(?:.*::)?(Zero|Fill|Copy|Normal|Uniform|Bernoulli|Exponential|Random)Backwards?\d*$"
)
_PARTLY = "CopySlices"  # a write to a view of it


@dataclass(frozen=True)
class Found:
    carrier: Carrier
    first: BackwardCall  # the backward that used the old graph up
    made: Site  # where the old tensor was made; empty where that is not known


@dataclass(frozen=True)
class _Edge:
    above: Any  # the first node made after the earlier backward; None: the failing backward starts at `below`
    below: Any


def find(
    roots: Sequence[Any], earlier: Sequence[BackwardCall], failing: BackwardCall | None, at: Site
) -> Found | None:
    """None where nothing that was recorded holds such an edge."""
    reached = list(nodes.walk(roots))
    numbers = {nodes.sequence(node) for node in reached}
    alive = {nodes.sequence(node): (node, slot) for node, slot in _alive_now()}
    for call in reversed(earlier):
        held, end = carriers.of(call)
        if not call.roots or numbers.isdisjoint(held):
            continue
        ranked = [
            ((_is_made_again(slot, at), tier, order), edge, slot)
            for tier, spent in enumerate(_spent(reached, numbers, call, failing, held, end, alive))
            for edge in _crossed(reached, spent, call, failing, held)
            for order, slot in enumerate(held[nodes.sequence(edge.below)])
        ]
        # The place that outlives an iteration first; then the surest, by the innermost frame and the shortest path.
        ranked.sort(key=lambda r: r[0])
        if ranked:
            (made_again, *_), edge, slot = ranked[0]
            if made_again and nodes.sequence(edge.below) not in alive and edge.above is not None:
                return None  # it was held by something that no variable leads to: a generator, an iterator
            made = _made(edge.below, call, numbers)
            best = {nodes.sequence(e.below): (rank, s) for rank, e, s in reversed(ranked)}
            others = [s for rank, s in best.values() if rank[0] == ranked[0][0][0]]
            return Found(
                _carrier(edge, slot, [slot, *reversed(others)], made, call, at, alive), call, made[0]
            )
    return None


def _alive_now() -> Iterator[tuple[Any, Slot]]:
    for tensor, slot in carriers.tensors(sys._getframe(1)):
        if (node := carriers.node_of(tensor)) is not None:
            yield node, slot


# -- the edge ----------------------------------------------------------------------------------------
def _crossed(
    reached: Sequence[Any],
    spent: set[int],
    call: BackwardCall,
    failing: BackwardCall | None,
    held: carriers.Held,
) -> list[_Edge]:
    """The edges from nodes that `call` did not run into nodes that it used up, where something held the latter."""
    found = [
        _Edge(node, below)
        for node in reached
        if nodes.sequence(node) not in spent
        for below, _ in edges(node)
        if below is not None and (number := nodes.sequence(below)) in spent and number in held
    ]
    starts = set(failing.roots) if failing is not None else set()
    found += [
        _Edge(None, node)
        for node in reached
        if (number := nodes.sequence(node)) in starts and number in call.roots and number in held
    ]
    return found


def _spent(
    reached: Sequence[Any],
    numbers: set[int],
    call: BackwardCall,
    failing: BackwardCall | None,
    held: carriers.Held,
    end: int,
    alive: dict[int, tuple[Any, Slot]],
) -> list[set[int]]:
    """The numbers of the nodes that `call` ran. Exactly, where its roots still live; else those that it is known to
    have asked with what lies below them. Then the same with what was held above them when it ended: nodes that keep no
    tensor leave no trace, and it does not run the node of a write made after the loss."""
    newest = max(call.roots)
    if all(number in alive for number in call.roots):
        roots = [_Root(alive[number][0]) for number in call.roots]
    else:
        roots = [
            _Root(n) for n in reached if nodes.sequence(n) <= newest and _was_used(n, call, failing, numbers)
        ]
    sure = {nodes.sequence(n) for n in nodes.walk(roots)} & numbers
    starts = failing.roots if failing is not None else ()
    leading = set(sure)
    above: set[int] = set()
    for node in sorted(reached, key=nodes.sequence):
        number = nodes.sequence(node)
        if number >= end:
            break
        if number not in leading and any(
            b is not None and nodes.sequence(b) in leading for b, _ in edges(node)
        ):
            leading.add(number)
        if number in leading and number in held and number not in starts:
            above.add(number)
    likely = {
        nodes.sequence(n) for n in nodes.walk([_Root(n) for n in reached if nodes.sequence(n) in above])
    }
    return [sure, sure | likely]


def _was_used(node: Any, call: BackwardCall, failing: BackwardCall | None, numbers: set[int]) -> bool:
    if call.visited:
        return who_ran(nodes.sequence(node), [call], numbers) is not None
    run_now = failing is not None and nodes.sequence(node) in failing.visited
    return nodes.freed(node) and not run_now


@dataclass(frozen=True)
class _Root:
    """As `nodes.walk` takes it."""

    node: Any


# -- the place ---------------------------------------------------------------------------------------
def _is_made_again(slot: Slot, at: Site) -> bool:
    """Whether each iteration around the failing backward binds the variable before it reads it."""
    first = slot.steps[0]
    if first.kind not in ("local", "global"):
        return False
    for frame in at.users:
        home = "<module>" if first.kind == "global" else first.home
        if (frame.file, frame.function) != (first.file, home):
            continue
        loop = _loop_around(frame)
        if loop is not None:
            return _binds_first(loop, first.key)
    return False


def is_made_again(name: str, at: Site) -> bool:
    """The same of a name in any of the failing functions."""
    loops = [loop for frame in at.users if (loop := _loop_around(frame)) is not None]
    return name.isidentifier() and any(_binds_first(loop, name) for loop in loops)


def _loop_around(frame: Frame) -> ast.For | ast.AsyncFor | ast.While | None:
    found = statement_of(frame)
    if found is None:
        return None
    source, child = found[0], found[1]
    node: ast.AST = child
    for up in source.ancestors(child):
        if isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return None
        if isinstance(up, ast.For | ast.AsyncFor | ast.While) and node in up.body:
            return up
        node = up
    return None


def _binds_first(loop: ast.For | ast.AsyncFor | ast.While, name: str) -> bool:
    """Whether the loop binds the name for each iteration, or its body does and reads it in no statement up to there."""
    targets = ast.walk(loop.target) if isinstance(loop, ast.For | ast.AsyncFor) else ()
    if any(isinstance(n, ast.Name) and n.id == name for n in targets):
        return True
    for statement in (s for part in loop.body for s in _in_order(part)):
        own = list(_own(statement))
        reads = any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in own)
        if reads or (isinstance(statement, ast.AugAssign) and ast.unparse(statement.target) == name):
            return False
        if any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in own):
            return True
    return False


def _in_order(statement: ast.stmt) -> Iterator[ast.stmt]:
    """A statement and those inside it, as they are written."""
    yield statement
    for field in ("body", "orelse", "handlers", "finalbody"):
        for below in getattr(statement, field, ()):
            if isinstance(below, ast.ExceptHandler):
                for one in below.body:
                    yield from _in_order(one)
            elif isinstance(below, ast.stmt):
                yield from _in_order(below)


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without the statements inside it."""
    todo: list[ast.AST] = [c for c in ast.iter_child_nodes(statement) if not isinstance(c, ast.stmt)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ExceptHandler | ast.Lambda):
            continue
        yield node
        todo.extend(ast.iter_child_nodes(node))


# -- the line and the words for it ---------------------------------------------------------------------
def _made(node: Any, call: BackwardCall, numbers: set[int]) -> list[Site]:
    """Where the tensor was made, or the nearest part of it that is known, and then its other parts."""
    known: list[tuple[bool, int, Site]] = []
    for count, below in enumerate(nodes.walk([_Root(node)])):
        if count >= _NEAR:
            break
        number = nodes.sequence(below)
        who = who_ran(number, [call], numbers)
        if who is not None:
            known.append((number in call.visited, number, resolve(who[1])))
    return [site for *_, site in sorted(known, key=lambda k: k[:2], reverse=True)] or [Site()]


def _carrier(
    edge: _Edge,
    slot: Slot,
    crossing: Sequence[Slot],
    parts: Sequence[Site],
    call: BackwardCall,
    at: Site,
    alive: dict[int, tuple[Any, Slot]],
) -> Carrier:
    kept = _kept_by(edge, slot)
    made = parts[0]
    store = kept or stored_by(slot, made.users)
    number = nodes.sequence(edge.below)
    same_line = _spot(call.frame) == _spot(at.user)
    if edge.above is None:
        how: Any = "root"
    elif kept is not None and not str(edge.above.name()).endswith(_PARTLY):
        how = "in-place"
    elif slot.steps[-1].kind == "item" and store is not None and _is_collected(store):
        how = "collected"
    elif number not in alive:
        how = "carried"
    else:
        how = "once" if same_line else "shared"
    if how in ("once", "shared") and store is not None:
        store = first_of_chain(
            store, slot, {spot for part in parts for spot in map(_spot, part.users) if spot}
        )
    first = slot.steps[0]
    same_home = [s for s in crossing if (s.steps[0].file, s.steps[0].home) == (first.file, first.home)]
    return Carrier(
        name=store.name if store is not None else slot.path,
        how=how,
        places=tuple(dict.fromkeys(_spelled(s) for s in same_home if s.reachable)) if slot.reachable else (),
        file=first.file,
        home=first.home,
        stored=store.frame if store is not None else made.user,
        used_by=call.frame,
        in_place=kept.in_place if kept is not None else "",
        cached=_cached(store),
    )


def _kept_by(edge: _Edge, slot: Slot) -> Store | None:
    """The in-place write that put a node on top of the old graph."""
    name = str(edge.above.name()) if edge.above is not None else ""
    match = _OVERWRITING.match(name)
    if match is not None:
        methods = {f"{match[1].lower()}_"} | ({"__setitem__"} if match[1] in ("Copy", "Fill") else set())
    elif name.endswith(_PARTLY):
        methods = {"__setitem__", "copy_", "zero_", "fill_"}
    else:
        return None
    found = [s for s in stores_of(slot) if s.in_place in methods]
    return found[0] if len({s.frame.line for s in found}) == 1 else None


def _is_collected(store: Store) -> bool:
    return store.name.rpartition(".")[2] in ("append", "appendleft", "extend", "insert", "add")


def _cached(store: Store | None) -> str:
    if store is None or not isinstance(store.node, ast.Return):
        return ""
    found = statement_of(store.frame)
    if found is None:
        return ""
    home = next(
        (u for u in found[0].ancestors(found[1]) if isinstance(u, ast.FunctionDef | ast.AsyncFunctionDef)),
        None,
    )
    names = [ast.unparse(d) for d in home.decorator_list] if home is not None else []
    return next((n for n in names if "cache" in n), "")


def _spelled(slot: Slot) -> tuple[str, str]:
    """The path to bind to, and what holds the tensor there: of a tuple or a list the whole."""
    last = slot.steps[-1]
    if last.kind == "item" and last.key.lstrip("-").isdigit():
        whole = Slot(slot.steps[:-1])
        return whole.path.replace("'", '"'), "tuple" if last.home == "tuple" else "list"
    return slot.path.replace("'", '"'), "item" if last.kind == "item" else "tensor"


def _spot(frame: Frame | None) -> tuple[str, int] | None:
    return None if frame is None else (frame.file, frame.line)
