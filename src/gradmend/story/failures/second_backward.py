""" "Trying to backward through the graph a second time": where the first was, and what the two share."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradmend.capture.backwards import BackwardCall
from gradmend.capture.sites import resolve
from gradmend.model import Conflict, Culprit, Frame, Site
from gradmend.story.failures import nodes
from gradmend.story.names import enclosing_loop, op_name, result_name
from gradmend.story.source import statement_of

PATTERN = re.compile(r"Trying to backward through the graph a second time")
RULE = "GM131"

CreationSite = Callable[[Any], Site | None]
_MOST_CANDIDATES = 3


@dataclass(frozen=True)
class Shared:
    """The used-up part of the graph, named by its node nearest to the failing roots."""

    node: str  # "DivBackward0"
    op: str
    number: int
    site: Site  # where it was made; empty where that is not known

    @property
    def frame(self) -> Frame | None:
        return self.site.user

    def seen_from(self, at: Site) -> tuple[Frame, Frame] | None:
        """The line that made it and the failing line, both in the innermost function that led to both."""
        for now in at.users:
            for made in self.site.users:
                if (made.file, made.function) == (now.file, now.function):
                    return made, now
        return None

    def names_at(self, at: Site) -> tuple[str, ...]:
        """The variables it is known by where backward is called, else where it was made."""
        pair = self.seen_from(at)
        frames = (pair[0] if pair else None, self.frame)
        return next((n for f in frames if f is not None and (n := carried_names(f))), ())

    def called(self, at: Site) -> str:
        names = self.names_at(at)
        return " and ".join(f"`{n}`" for n in names) if names else f"the result of `{self.op}`"


@dataclass(frozen=True)
class First:
    """The backward that used it up: one call, or those that may have been it."""

    calls: tuple[BackwardCall, ...]
    sure: bool
    same_root: bool = False
    inside: bool = False  # its root is a part of the failing graph: a running total

    @property
    def frames(self) -> tuple[Frame, ...]:
        return tuple(dict.fromkeys(f for c in self.calls if (f := c.frame) is not None))


def diagnose(
    at: Site,
    *,
    roots: Sequence[Any] = (),
    history: Sequence[BackwardCall] = (),
    creation_site: CreationSite | None = None,
) -> Conflict:
    """`at` is where the failing backward was called; the last call in the history that failed is that one."""
    failing = next((c for c in reversed(history) if c.outcome != "done"), None)
    earlier = [c for c in history if c is not failing and c.outcome == "done" and not c.retain]
    shared, numbers = _shared(roots, earlier, failing, creation_site)
    first = _first(earlier, failing, shared, numbers)
    if at.user is None and failing is not None:
        at = failing.site
    return _tell(at, shared, first)


def _shared(
    roots: Sequence[Any],
    earlier: Sequence[BackwardCall],
    failing: BackwardCall | None,
    creation_site: CreationSite | None,
) -> tuple[Shared | None, set[int]]:
    """The used-up node that the failing backward came upon, and the numbers of all nodes it could reach.

    The failing backward frees as it goes, newest node first, until it meets that node. So of the freed nodes
    it is the newest one which this backward did not run itself, and which is no newer than an earlier root.
    """
    newest_used = max((n for c in earlier for n in c.roots), default=-1)
    ran = failing.visited if failing is not None else {}
    frees = failing is not None and not failing.retain
    if frees and not ran and failing is not None and max(failing.roots, default=-1) <= newest_used:
        # Its own nodes are as old as the used-up ones, and nothing tells which of them it has just run.
        newest_used = -1 if not _same_roots(failing, earlier) else newest_used
    best, numbers = None, set()
    for node in nodes.walk(roots):
        number = nodes.sequence(node)
        numbers.add(number)
        if number > newest_used or number in ran or (best is not None and number < nodes.sequence(best)):
            continue
        if nodes.freed(node):
            best = node
    if best is None:
        return None, numbers
    number = nodes.sequence(best)
    site = creation_site(best) if creation_site else None
    if site is None:
        raw = next((c.visited[number] for c in earlier if number in c.visited), None)
        site = resolve(raw) if raw is not None else anomaly_site(best)
    return Shared(str(best.name()), nodes.op_of(best), number, site or Site()), numbers


def anomaly_site(node: Any) -> Site | None:
    """Anomaly mode leaves each node the traceback of its forward."""
    lines = node.metadata.get("traceback_") if hasattr(node, "metadata") else None
    if not lines:
        return None
    from gradmend.story.failures.traceback_text import frames_in

    return Site(tuple(reversed(frames_in("".join(lines)))))


def _first(
    earlier: Sequence[BackwardCall],
    failing: BackwardCall | None,
    shared: Shared | None,
    numbers: set[int],
) -> First:
    if shared is not None:
        ran = [c for c in earlier if shared.number in c.visited]
        if ran:
            return First(
                (ran[0],), True, _same_root(ran[0], failing), bool(numbers.intersection(ran[0].roots))
            )
    through = [c for c in earlier if numbers.intersection(c.roots)]
    if through:
        return First((through[0],), True, _same_root(through[0], failing), inside=True)
    # A backward can have used up only what was made before its root.
    able = [c for c in earlier if shared is None or max(c.roots, default=-1) > shared.number]
    frames = list(dict.fromkeys(c.frame for c in able))
    if len(frames) == 1:
        return First((able[0],), True)
    return First(tuple(able[-_MOST_CANDIDATES:]), False)


def _same_root(call: BackwardCall, failing: BackwardCall | None) -> bool:
    return failing is not None and bool(set(call.roots) & set(failing.roots))


def _same_roots(failing: BackwardCall, earlier: Sequence[BackwardCall]) -> bool:
    return any(_same_root(c, failing) for c in earlier)


def _tell(at: Site, shared: Shared | None, first: First) -> Conflict:
    now, made = at.user, shared.frame if shared else None
    before = first.frames[0] if first.sure and first.frames else None
    culprits = [(f, "backward") for f in (now, *first.frames)]
    if shared is not None and made is not None:
        culprits.append((made, op_name(made) or shared.op))
    notes = ["backward frees what the graph kept, unless it is called with `retain_graph=True`"]
    if first.sure and before is not None and not _same_place(before, now):
        notes.insert(0, f"the first backward through it was {_at(before, now)}")
    elif not first.sure and first.frames:
        lines = ", ".join(_at(f, now) for f in first.frames)
        notes.insert(0, f"the first backward through it was one of these: {lines}")
    if first.same_root:
        message = "this backward starts from a loss whose graph an earlier backward has already used up"
        helps: tuple[str, ...] = (
            "call backward once for each forward",
            "if both passes are wanted, give the first one `retain_graph=True`; their gradients add up",
        )
    elif first.inside:
        message = (
            "this backward starts from a total that contains an earlier loss, whose backward has already run"
        )
        helps = (
            "call backward on the new loss alone: gradients add up by themselves",
            "or call it once, on the total, after the loop",
            "a total that is only printed needs no graph: add `loss.item()` or `loss.detach()` to it",
        )
    elif before is not None and _same_place(before, now):
        message, helps = _again(at, shared)
    elif shared is None and not first.frames:
        message, helps = _anything(now)
    else:
        message, helps = _two_losses(at, shared, before)
    return Conflict(
        rule=RULE,
        kind="error",
        message=message,
        culprits=tuple(dict.fromkeys(Culprit(f.file, f.line, op) for f, op in culprits if f is not None)),
        backward=now,
        notes=tuple(notes),
        help=helps,
    )


def carried_names(frame: Frame) -> tuple[str, ...]:
    """What the line calls its result. Of several (`out, h = rnn(x, h)`) those that it reads too: state."""
    name = result_name(frame)
    if name is None or "," not in name:
        return (name,) if name else ()
    found = statement_of(frame)
    if found is None or not isinstance(found[1], ast.Assign):
        return ()
    target, value = found[1].targets[0], found[1].value
    read = {ast.unparse(n) for n in ast.walk(value) if isinstance(n, ast.Name | ast.Attribute)}
    parts = (n for n in ast.walk(target) if isinstance(n, ast.Name | ast.Attribute))
    return tuple(t for n in parts if (t := ast.unparse(n)) in read and t != "self")


Words = tuple[str, tuple[str, ...]]


def _anything(now: Frame | None) -> Words:
    """Nothing was recorded: the three ways to get here, the likeliest first."""
    carried = (
        "if something is carried over from the iteration before (a hidden state, a running total), or was made once "
        "before the loop, `detach()` it there, or compute it anew in each iteration"
    )
    others = (
        "if two losses share a part, add them and call backward once, or give the first `retain_graph=True`",
        "if the same loss is meant to go back twice, give the first backward `retain_graph=True`",
    )
    loop = enclosing_loop(now) if now else None
    return (
        "this backward goes through a part of the graph which an earlier backward has already used up",
        (carried, *others) if loop is not None or now is None else (*others, carried),
    )


def _two_losses(at: Site, shared: Shared | None, before: Frame | None) -> Words:
    names = shared.names_at(at) if shared else ()
    line = f" ({_at(before, at.user)})" if before is not None else ""
    detached = " and ".join(f"`{n}.detach()`" for n in names) or "a `detach()`ed copy"
    return (
        f"this backward goes through {_part(at, shared)}, which an earlier backward has already used up",
        (
            "if both losses should train it, add them and call backward once: `(loss_a + loss_b).backward()`",
            f"or give the first backward{line} `retain_graph=True`",
            f"if one of them should not train it, give that one {detached}",
        ),
    )


def _again(at: Site, shared: Shared | None) -> Words:
    """One line ran backward both times: a loop. Was the shared part made in it, or before it?"""
    names = (shared.names_at(at) if shared else ()) or ("x",)
    detach = f"`{', '.join(names)} = {', '.join(f'{n}.detach()' for n in names)}`"
    part = _part(at, shared)
    pair = shared.seen_from(at) if shared else None
    loop = enclosing_loop(pair[1]) if pair else None
    if pair is None or loop is None:
        return (
            f"this line runs backward again, and goes through {part}, which it used up the time before",
            (
                f"if it is carried over from the time before, cut it off there: {detach}",
                f"if it was made once for all, cut it off ({detach}), or make it anew each time",
            ),
        )
    if enclosing_loop(pair[0]) == loop:
        return (
            f"this backward goes into the iteration before: {part} was carried over, "
            "and the backward of its own iteration has used up its graph",
            (f"cut it off where it is carried over: {detach}",),
        )
    return (
        f"{part} is older than the loop: the first iteration's backward used up its graph, "
        "and the next one needs it again",
        (
            f"if it should not be trained through, cut it off where it is made: {detach}",
            "if it should, compute it anew inside the loop",
        ),
    )


def _part(at: Site, shared: Shared | None) -> str:
    if shared is None:
        return "a part of the graph"
    where = f" (made {_at(shared.frame, at.user)})" if shared.frame is not None else ""
    return f"{shared.called(at)}{where}"


def _same_place(a: Frame, b: Frame | None) -> bool:
    return b is not None and (a.file, a.line) == (b.file, b.line)


def _at(frame: Frame, now: Frame | None) -> str:
    if now is not None and frame.file == now.file:
        return f"at line {frame.line}"
    return f"at {frame.file}:{frame.line}"
