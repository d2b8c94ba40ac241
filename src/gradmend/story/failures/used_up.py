"""What two backwards share: the used-up part of the graph, the line that made it, the backward that used it up."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradmend.capture.graph.calls import BackwardCall, who_ran
from gradmend.capture.sites import resolve
from gradmend.model import Frame, Site
from gradmend.story.failures import nodes
from gradmend.story.names import result_name
from gradmend.story.source import statement_of

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
        outer = pair[0] if pair and not self._constructed(pair[0]) else None
        return next((n for f in (outer, self.frame) if f is not None and (n := carried_names(f))), ())

    def _constructed(self, outer: Frame) -> bool:
        """Whether a constructor made it: what that line calls its result is the object, `net = Net()`."""
        users = self.site.users
        return any(f.function.endswith("__init__") for f in users[: users.index(outer)])

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


def find_shared(
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
    frees = failing is not None and not failing.retain
    if (
        frees
        and failing is not None
        and not failing.visited
        and max(failing.roots, default=-1) <= newest_used
    ):
        # Its own nodes are as old as the used-up ones, and nothing tells which of them it has just run.
        newest_used = -1 if not _same_roots(failing, earlier) else newest_used
    best = None
    calls = [*earlier, failing] if failing is not None else earlier
    reached = list(nodes.walk(roots))
    numbers = {nodes.sequence(node) for node in reached}
    for node in reached:
        number = nodes.sequence(node)
        if number > newest_used or (best is not None and number < nodes.sequence(best)):
            continue
        who = who_ran(number, calls, numbers)
        if who is not None and who[0] is failing:
            continue
        if nodes.freed(node):
            best = node
    if best is None:
        return None, numbers
    number = nodes.sequence(best)
    site = creation_site(best) if creation_site else None
    if site is None:
        who = who_ran(number, earlier, numbers)
        site = resolve(who[1]) if who is not None else anomaly_site(best)
    return Shared(str(best.name()), nodes.op_of(best), number, site or Site()), numbers


def find_kept(roots: Sequence[Any], earlier: Sequence[BackwardCall]) -> tuple[Shared | None, set[int]]:
    """The same where graphs are kept: the newest node that an earlier backward ran too."""
    reached = {nodes.sequence(node): node for node in nodes.walk(roots)}
    numbers = set(reached)
    for number in sorted(numbers, reverse=True):
        who = who_ran(number, earlier, numbers)
        if who is not None:
            node = reached[number]
            return Shared(str(node.name()), nodes.op_of(node), number, resolve(who[1])), numbers
    return None, numbers


def anomaly_site(node: Any) -> Site | None:
    """Anomaly mode leaves each node the traceback of its forward."""
    lines = node.metadata.get("traceback_") if hasattr(node, "metadata") else None
    if not lines:
        return None
    from gradmend.story.failures.traceback_text import frames_in

    return Site(tuple(reversed(frames_in("".join(lines)))))


def find_first(
    earlier: Sequence[BackwardCall],
    failing: BackwardCall | None,
    shared: Shared | None,
    numbers: set[int],
) -> First:
    if shared is not None:
        who = who_ran(shared.number, earlier, numbers)
        if who is not None:
            call, _ = who
            return First((call,), True, _same_root(call, failing), bool(numbers.intersection(call.roots)))
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


def carried_names(frame: Frame) -> tuple[str, ...]:
    """What the line calls its result. Of several (`out, h = rnn(x, h)`) those that it reads too: state. The same of what
    is only a part of the result (`mean = 0.9 * mean + 0.1 * x`)."""
    name = result_name(frame)
    if name is not None and "," not in name:
        return (name,)
    found = statement_of(frame)
    statement = found[1] if found is not None else None
    if isinstance(statement, ast.AugAssign):
        return (ast.unparse(statement.target),)
    if not isinstance(statement, ast.Assign):
        return ()
    target, value = statement.targets[0], statement.value
    read = {ast.unparse(n) for n in ast.walk(value) if isinstance(n, ast.Name | ast.Attribute)}
    parts = (n for n in ast.walk(target) if isinstance(n, ast.Name | ast.Attribute))
    return tuple(t for n in parts if (t := ast.unparse(n)) in read and t != "self")
