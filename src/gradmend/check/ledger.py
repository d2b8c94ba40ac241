"""The static ledger: what ops keep, what lines write, what backward needs, in the order of the abstract run.

As in the running ledger, a Save followed by a Write to the same storage and a backward that reaches the Save's node is a
conflict. Events carry the arms of the branches they lie in: two that can't be on one path never meet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gradmend.check import words
from gradmend.check.findings import Call, Finding, Place, Severity, StaticFix
from gradmend.check.instead import UNKNOWN, Instead
from gradmend.check.values import Node, Path, Storage, Tensor
from gradmend.check.walk.paths import merged

if TYPE_CHECKING:
    from gradmend.check.walk.frames import Region

_NONE: frozenset = frozenset()
_WAYS = 6  # to one node that are followed: each excludes other writes
_LONGEST = 64  # arms of one way: further back they are not added up, and cost stays linear
_MOST = 48  # events kept per storage: the latest matter, and cost stays linear


@dataclass(slots=True, eq=False)
class Save:
    storage: Storage
    node: Node
    place: Place
    op: str
    slot: str  # the op's name for it: "self", "result", "indices", or "ctx" for a tensor hung on ctx
    name: str  # what the program calls it
    tick: int
    path: Path
    sure: bool
    leaf: bool
    whole: Tensor | None  # the tensor itself was kept, not a view of it
    unguarded: bool = False
    lent: frozenset = _NONE  # conditions of its path that come with a value, not from where it stands
    region: Region | None = None  # the checkpointed function that the op is in


@dataclass(slots=True, eq=False)
class Write:
    place: Place
    op: str  # "+=", "masked_fill_", "SGD.step", ...
    how: str  # "loud", "data", "numpy", "swap", "fused"
    name: str
    tick: int
    path: Path
    sure: bool
    part: bool = False  # a slice or a view of the memory
    flag: bool = False  # by inplace=True
    fix: StaticFix | None = None
    instead: Instead = UNKNOWN
    reads: StaticFix | None = None  # for a Save inside of the statement that writes
    made: Place | None = None  # by inplace=True of a module: where that was made
    via: Call | None = None
    of: Tensor | None = None  # of detach_(): the tensor that was detached
    lent: frozenset = _NONE
    region: Region | None = None
    looped: bool = False  # in a loop of its function
    within: Node | None = None  # in the backward of this node, which has read by then what it kept
    elsewhere: bool = False  # a name is written to, and something else may hold the tensor as well


@dataclass(slots=True)
class Ledger:
    findings: dict[tuple[str, str, int, int], Finding] = field(default_factory=dict)
    tick: int = 0
    backwards: int = 0
    calls: tuple[Place | None, ...] = ()  # the calls that led to the backward() that runs
    ran: dict[tuple[Place, tuple[Place | None, ...]], int] = field(
        default_factory=dict
    )  # when each first ran
    since: int = 0  # what was kept before this tick belongs to another trial
    expected: bool = False  # what runs now is ready for PyTorch's error: `with pytest.raises(RuntimeError)`

    def now(self) -> int:
        self.tick += 1
        return self.tick

    def save(self, save: Save) -> None:
        save.node.saves.append(save)
        save.node.keeps = True
        saves = save.storage.saves
        saves.append(save)
        if len(saves) > _MOST:
            del saves[: _MOST // 2]

    def write(self, storage: Storage, write: Write) -> None:
        if storage.saves:
            storage.writes.append(write)
            if len(storage.writes) > _MOST:
                del storage.writes[: _MOST // 2]

    def backward(
        self,
        roots: Iterable[Node],
        place: Place,
        path: Path,
        *,
        retain: bool,
        assumed: bool = False,
        only: set[Node] | None = None,
        via: Call | None = None,
        lent: frozenset = _NONE,
        calls: tuple[Place | None, ...] = (),
    ) -> list[Tensor]:
        """Go through the graph as backward would: conflicts, parts that are used up. Returns the leaves it reached."""
        self.backwards += not assumed
        if not assumed:
            self.ran.setdefault((place, calls), self.tick)
        self.calls = calls
        leaves: list[Tensor] = []
        seen: dict[int, list[Path]] = {}
        # Each with the arms on which it is gone to: those of backward itself, and of the values on the way.
        todo = [(node, path) for node in roots]
        doubted: list[
            tuple[Node, Path]
        ] = []  # behind one of several items, nobody knows which: gone to when all else is done
        first = {id(node) for node, _ in todo}
        while todo or doubted:
            doubt = not todo
            node, way = doubted.pop() if doubt else todo.pop()
            ways = seen.setdefault(id(node), [])
            if len(ways) >= _WAYS or any(_within(way, other) for other in ways):
                continue
            ways.append(way)
            if only is not None and node not in only:
                continue
            if not compatible(node.path, way):
                if node.passes and node.parents:
                    (doubted if doubt else todo).append((node.parents[0], way))
                continue
            if node.either:
                if len(way) < _LONGEST:
                    way = merged(way, node.path)
                else:
                    doubt = True  # which arms exclude each other is no longer known
            again = len(ways) > 1
            if node.leaf is not None:
                if not again:
                    leaves.append(node.leaf)
                continue
            used = (
                None
                if again
                else next(
                    (f for f in node.freed if compatible(f[1], way) and compatible(f[1], node.path)), None
                )
            )
            if used is not None:
                # Somebody else's call may have detached what it was given; the same loss twice is the same loss.
                if node.keeps and not assumed and (node.sure or id(node) in first):
                    found = words.second_backward(node, used[0], place)
                    if doubt or not nested(*parts(used[1], used[2]), node.path, *parts(path, lent)):
                        found = replace(found, severity="warning")
                    self.told(replace(found, via=via))
                    continue
                if node.keeps:
                    continue
            for save in node.saves:
                self._judge(save, place, path, way, assumed, lent, doubt)
            if not retain and not assumed and not again:
                node.freed.append((place, path, lent))
            (doubted if doubt or chosen(node.path) else todo).extend((p, way) for p in node.parents)
        return leaves

    def _judge(
        self, save: Save, place: Place, path: Path, way: Path, assumed: bool, lent: frozenset, doubt: bool
    ) -> None:
        if save.tick <= self.since or not compatible(save.path, way):
            return
        for write in save.storage.writes:
            if (
                write.tick <= save.tick
                or write.within is save.node
                or not compatible(write.path, save.path)
                or not compatible(write.path, way)
            ):
                continue
            if write.how == "swap" and save.whole is None:
                continue  # a view that was kept still looks at the old memory
            if write.how == "detach" and (save.whole is not write.of or save.slot == "result"):
                continue
            if save.region is not None:
                if write.region is not save.region:
                    continue  # backward reads what the second run keeps
                if save.region.anew and save.region.kept < write.tick:
                    continue  # the second run ends before it comes to the write
                save.unguarded = save.region.anew  # its hooks ask no counter
            known = save.sure and write.sure and not doubt
            known = known and not (chosen(save.path) or chosen(write.path))
            if assumed and not known:
                continue
            # Two tests side by side: some run takes both arms, perhaps. A warning says no more.
            sure = known and nested(
                *parts(save.path, save.lent),
                *parts(write.path, write.lent),
                *parts(path, lent),
                tuple(pair for pair in way if pair not in path),
            )
            severity: Severity = "error" if sure and not assumed else "warning"
            # It ran before the write as well, by the same calls: a later iteration, whose graph reaches back.
            later = self.since < self.ran.get((place, self.calls), write.tick) < write.tick
            self.told(words.overwritten(save, write, None if assumed else place, severity, later))
            return

    def told(self, finding: Finding | None) -> None:
        if finding is None:
            return
        if self.expected:
            finding = replace(finding, severity="warning")
        key = (finding.place.file, finding.rule, finding.place.line, finding.place.column)
        there = self.findings.get(key)
        if there is None or (there.severity == "warning" and finding.severity == "error"):
            self.findings[key] = finding


def compatible(a: Path, b: Path) -> bool:
    """May both be on one path?"""
    if not a or not b or a is b:
        return True
    if len(a) > len(b):
        a, b = b, a
    arms = dict(b)
    return all(arms.get(condition, arm) == arm for condition, arm in a)


def _within(path: Path, other: Path) -> bool:
    """Does it go through all the arms of the other?"""
    return not other or other is path or set(other) <= set(path)


def parts(path: Path, lent: frozenset) -> tuple[Path, ...]:
    """The arms that something stands in, and those that its value comes from: two things that may exclude each other."""
    if not lent:
        return (path,)
    return tuple(pair for pair in path if pair[0] not in lent), tuple(
        pair for pair in path if pair[0] in lent
    )


def nested(*paths: Path) -> bool:
    """Does one of them hold all the arms of the others? Else two tests stand side by side, and one may exclude the other."""
    longest: Path = ()
    for path in paths:
        longest = path if len(path) > len(longest) else longest
    arms = dict(longest)
    return all(condition in arms for path in paths for condition, _ in path)


def chosen(path: Path) -> bool:
    """Does it rest on which item of several was meant?"""
    return any(type(condition) is tuple and condition[0] == "item" for condition, _ in path)


def leading_to(roots: Iterable[Node], targets: set[int]) -> set[Node]:
    """The nodes between the roots and these nodes: what torch.autograd.grad(..., inputs) goes through."""
    order: list[Node] = []
    seen: set[int] = set()
    todo: list[tuple[Node, bool]] = [(root, False) for root in roots]
    while todo:
        node, done = todo.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            todo.append((node, True))
            todo += [(p, False) for p in node.parents]
    kept: set[Node] = set()
    for node in order:  # parents first
        if id(node) in targets or any(p in kept for p in node.parents):
            kept.add(node)
    return kept
