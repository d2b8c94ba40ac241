"""The vocabulary of Gradmend: plain, frozen data that every stage reads and writes.

    program -> ledger -> Conflict -> Story -> Fix -> report

Nothing here imports torch or anything of ours, so a Session can be loaded and reported anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

SCHEMA = 1

Owner = Literal["user", "library", "torch"]
Kind = Literal["error", "silent", "refused-but-right"]
Outcome = Literal["clean", "conflict", "healed", "failed"]
FixStatus = Literal["proven", "unproven", "failed"]


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the call chain, with the columns of the expression that was running there."""

    file: str
    line: int
    function: str
    owner: Owner = "user"
    col: int | None = None
    end_line: int | None = None
    end_col: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "function": self.function}


@dataclass(frozen=True, slots=True)
class Site:
    """Where something happened: the call chain, innermost frame first."""

    frames: tuple[Frame, ...] = ()

    @property
    def user(self) -> Frame | None:
        """The innermost line of the user's own code; where there is none, the innermost line at all."""
        for frame in self.frames:
            if frame.owner == "user":
                return frame
        return self.frames[0] if self.frames else None

    @property
    def library(self) -> Frame | None:
        """The third-party line below the user's, when a library did it."""
        for frame in self.frames:
            if frame.owner == "user":
                return None
            if frame.owner == "library":
                return frame
        return None

    @property
    def users(self) -> tuple[Frame, ...]:
        return tuple(f for f in self.frames if f.owner == "user")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a tensor is called and what it looks like."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Save:
    """An op kept this tensor for its backward, at this line."""

    site: Site
    op: str  # "exp"
    node: str  # "ExpBackward0"
    slot: str | None  # "result": the name derivatives.yaml gives it
    tensor: TensorInfo
    view: str | None = None  # how the saved tensor lies in its storage, when it is a view
    leaf: bool = False  # a parameter, or a view of one


@dataclass(frozen=True, slots=True)
class Write:
    """This line changed a tensor's memory, by this op."""

    site: Site
    op: str  # "add_", "__setitem__", "SGD.step", ...
    tensor: TensorInfo
    how: Literal["data", "metadata", "foreign", "unknown"] = "data"
    quiet: bool = False  # PyTorch's version counter did not move
    times: int = 1
    view: str | None = None


@dataclass(frozen=True, slots=True)
class Culprit:
    file: str
    line: int
    op: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace exactly `before` by `after` in `file`, from `line` on."""

    file: str
    line: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Fix:
    title: str
    diff: str
    status: FixStatus
    edits: tuple[Edit, ...] = ()
    note: str = ""


class Lane(NamedTuple):
    """One region of a storage: a tensor or a view of it, by its bytes."""

    lo: int
    hi: int
    tensor: TensorInfo = TensorInfo()

    def as_json(self) -> list[Any]:
        return [self.lo, self.hi, asdict(self.tensor)]


class Event(NamedTuple):
    """What happened to a lane at a tick of the clock, and where. Rows, not objects, in JSON: a loop makes thousands."""

    what: Literal["save", "write", "read"]
    tick: int
    lane: int
    place: int  # of History.places
    op: str
    ours: bool = False  # of this conflict, not only of the same storage
    version: int | None = None  # PyTorch's counter after it, where that can be told
    quiet: bool = False
    # The smallest and the largest value of the saved region, after it.
    values: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the backward graph near the one that failed: -1 sends it its gradient, 0 is it, 1 and 2 come after."""

    name: str
    level: int
    place: int | None = None


@dataclass(frozen=True, slots=True)
class History:
    """One storage on one clock: what was saved of it, written to it, and read by backward."""

    nbytes: int
    lanes: tuple[Lane, ...] = ()
    events: tuple[Event, ...] = ()
    places: tuple[tuple[str, int, str], ...] = ()  # file, line, function
    changed: tuple[
        tuple[int, int], ...
    ] = ()  # bytes that differ from what was saved, when backward reads them
    left_out: int = 0  # events
    views: tuple[str, ...] = ()  # from the storage's owner to what was saved
    graph: tuple[Node, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "nbytes": self.nbytes,
            "lanes": [lane.as_json() for lane in self.lanes],
            "events": [list(event) for event in self.events],
            "places": self.places,
            "changed": self.changed,
            "left_out": self.left_out,
            "views": self.views,
            "graph": [[n.name, n.level, n.place] for n in self.graph],
        }


@dataclass(frozen=True, slots=True)
class Carrier:
    """What holds the edge from one backward to the graph that an earlier one used up."""

    name: str  # as the line that stored it writes it: "self.h"
    how: Literal["carried", "collected", "in-place", "once", "shared", "root"]
    # (path, form) of each place that crosses, as the function `home` of `file` spells it: ("net.h", "tensor"). None where
    # no expression reaches it.
    places: tuple[tuple[str, str], ...] = ()
    file: str = ""
    home: str = ""
    stored: Frame | None = None
    used_by: Frame | None = None  # the backward call that used the graph up
    in_place: str = ""  # the method that writes to it and keeps the old graph: "zero_"
    cached: str = ""  # the decorator that keeps a function's result: "cached_property"

    @property
    def detached(self) -> str:
        """The statement that cuts it: `net.h = net.h.detach()`."""
        paths = ", ".join(path for path, _ in self.places)
        return f"{paths} = {', '.join(_FORMS.get(form, '{0}.detach()').format(p) for p, form in self.places)}"


_FORMS = {"tuple": "tuple(t.detach() for t in {0})", "list": "[t.detach() for t in {0}]"}


@dataclass(frozen=True, slots=True, repr=False)
class Conflict:
    """What went wrong, once: an overwritten Save, or an error of PyTorch's own in this family."""

    rule: str
    kind: Kind
    message: str
    culprits: tuple[Culprit, ...] = ()
    saved: Save | None = None
    writes: tuple[Write, ...] = ()
    backward: Frame | None = None
    asked: tuple[Frame, ...] = ()  # the user's lines that led to that backward, innermost first
    healed_bytes: int = 0
    times: int = 1
    # PyTorch's counter of the saved tensor, and what it was at the save.
    versions: tuple[int, int] | None = None
    why: str = ""  # the formula, in words
    notes: tuple[str, ...] = ()
    help: tuple[str, ...] = ()
    edit: str = ""  # the first edit to try, in one line
    fixes: tuple[Fix, ...] = ()
    history: History | None = None
    carrier: Carrier | None = None  # of a second backward

    def __repr__(self) -> str:
        """One short line; `as_json()` has all of it."""
        at = f" at {self.culprits[0].file}:{self.culprits[0].line}" if self.culprits else ""
        return f"<Conflict {self.rule} {self.kind}{at}>"

    def as_json(self) -> dict[str, Any]:
        saved = self.saved
        at = saved.site.user if saved else None
        return {
            "rule": self.rule,
            "kind": self.kind,
            "message": self.message,
            "culprits": [asdict(c) for c in self.culprits],
            "saved": None
            if saved is None
            else {
                **(at.as_json() if at else {"file": None, "line": None, "function": None}),
                "op": saved.op,
                "node": saved.node,
                "slot": saved.slot,
                "tensor": asdict(saved.tensor),
                "view": saved.view,
                "leaf": saved.leaf,
                "stack": [asdict(f) for f in saved.site.frames],
            },
            "writes": [_write_json(w) for w in self.writes],
            "backward": self.backward.as_json() if self.backward else None,
            "healed_bytes": self.healed_bytes,
            "times": self.times,
            "versions": self.versions,
            "why": self.why,
            "notes": list(self.notes),
            "help": list(self.help),
            "edit": self.edit,
            "fixes": [asdict(f) for f in self.fixes],
            "history": self.history.as_json() if self.history else None,
            "carrier": asdict(self.carrier) if self.carrier else None,
        }


def _write_json(write: Write) -> dict[str, Any]:
    at = write.site.user
    return {
        **(at.as_json() if at else {"file": None, "line": None, "function": None}),
        "op": write.op,
        "how": write.how,
        "quiet": write.quiet,
        "times": write.times,
        "tensor": asdict(write.tensor),
        "view": write.view,
        "stack": [asdict(f) for f in write.site.frames],
    }


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of source with a label; the primary one is where to look first."""

    frame: Frame
    label: str
    primary: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """A conflict told to people: one line, the places, context (notes) and what to do (helps)."""

    level: Literal["error", "warning", "note", "healed"]
    code: str
    message: str
    spans: tuple[Span, ...] = ()
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()


@dataclass(slots=True)
class Session:
    """Everything one run taught us. Savable as JSON, and reported again without running anything."""

    outcome: Outcome = "clean"
    conflicts: list[Conflict] = field(default_factory=list)
    error: dict[str, Any] | None = None
    stats: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)  # the command, the date, the versions

    def __iter__(self) -> Iterator[Conflict]:
        return iter(self.conflicts)

    def __str__(self) -> str:
        """What happened, a line for each conflict; `gradmend report` and the exceptions tell it at length."""
        lines = [f"{self.outcome}: {len(self.conflicts)} conflict{'' if len(self.conflicts) == 1 else 's'}"]
        for c in self.conflicts:
            times = f" ({c.times} times)" if c.times > 1 else ""
            where = f" {c.culprits[0].file}:{c.culprits[0].line}" if c.culprits else ""
            lines.append(f"  {c.rule}{where}: {c.message}{times}")
        if self.error is not None:
            at = f" {self.error['file']}:{self.error['line']}" if self.error.get("file") else ""
            lines.append(f"  {self.error['type']}{at}: {self.error['message']}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "outcome": self.outcome,
            "conflicts": [c.as_json() for c in self.conflicts],
            "error": self.error,
            "stats": self.stats,
            "run": self.run,
        }
