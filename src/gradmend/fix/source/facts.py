"""What a rewrite needs to know of a conflict: who wrote, who saved, which backward asked, by line and column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradmend.model import Carrier, Frame

SECOND_BACKWARD = "GM131"
UPDATES = frozenset({"GM104", "GM105", "GM203"})  # parameters were written between forward and backward


@dataclass(frozen=True, slots=True)
class Place:
    """One line of the user's, with the columns of the expression that was running (UTF-8 bytes)."""

    file: str
    line: int
    function: str = ""
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Event:
    """A write or a save: the op, the tensor's name, and the user's call chain, innermost line first."""

    op: str = ""
    name: str | None = None
    chain: tuple[Place, ...] = ()
    quiet: bool = False
    how: str = "data"
    slot: str = ""  # what derivatives.yaml calls the saved tensor: "result", "self", ...
    direct: bool = True  # the user's line did it itself, not a library below it
    leaf: bool = False  # a saved parameter


@dataclass(frozen=True, slots=True)
class Facts:
    rule: str = ""
    kind: str = "error"
    message: str = ""
    writes: tuple[Event, ...] = ()
    saved: Event | None = None
    backward: tuple[Place, ...] = ()
    second: bool = False  # a graph's second backward, not an overwritten value
    forward: bool = False  # the forward itself was refused
    carrier: Carrier | None = None  # of a second backward: what held the old graph
    others: tuple[Event, ...] = ()  # writes of other conflicts, which may have to move together with these

    @property
    def of_parameters(self) -> bool:
        return self.rule in UPDATES or (self.saved is not None and self.saved.leaf)

    @property
    def files(self) -> tuple[str, ...]:
        """Every file of the story, the likeliest to edit first."""
        chain = [p for w in self.writes for p in w.chain]
        chain += list(self.saved.chain) if self.saved else []
        return tuple(dict.fromkeys(p.file for p in [*chain, *self.backward]))


def from_json(conflict: Mapping[str, Any], backward: Sequence[Place] = ()) -> Facts:
    """Read a Session's conflict. `backward` is the chain of the backward call, where it is known."""
    saved = conflict.get("saved")
    text = conflict.get("message") or ""
    at = conflict.get("backward")
    chain = tuple(backward) or ((_place(at),) if at and at.get("file") else ())
    writes = tuple(_event(w) for w in conflict.get("writes") or ())
    second = "second time" in text or conflict.get("rule") == SECOND_BACKWARD
    named = conflict.get("culprits") or []
    if not writes:
        writes = tuple(Event(c.get("op") or "", None, (_place(c),)) for c in named if c.get("file"))
    return Facts(
        rule=conflict.get("rule") or "",
        kind=conflict.get("kind") or "error",
        message=text,
        writes=writes,
        saved=_event(saved) if saved and saved.get("file") else None,
        backward=chain,
        second=second,
        forward=not saved and not chain,
    )


def carrier_of(raw: Mapping[str, Any] | None) -> Carrier | None:
    if not raw:
        return None
    frames = {key: Frame(**raw[key]) if raw.get(key) else None for key in ("stored", "used_by")}
    places = tuple((path, form) for path, form in raw["places"])
    return Carrier(**{**raw, **frames, "places": places})


def _event(raw: Mapping[str, Any]) -> Event:
    stack = raw.get("stack") or []
    chain = tuple(_place(f) for f in stack if f.get("owner", "user") == "user")
    if not chain and raw.get("file"):
        chain = (_place(raw),)
    tensor = raw.get("tensor")
    return Event(
        op=raw.get("op") or "",
        name=tensor.get("name") if isinstance(tensor, Mapping) else None,
        chain=chain,
        quiet=bool(raw.get("quiet")),
        how=raw.get("how") or "data",
        slot=raw.get("slot") or "",
        direct=not stack or stack[0].get("owner", "user") == "user",
        leaf=bool(raw.get("leaf")),
    )


def _place(raw: Mapping[str, Any]) -> Place:
    return Place(
        file=raw["file"],
        line=int(raw.get("line") or 0),
        function=raw.get("function") or "",
        column=raw.get("col"),
        end_line=raw.get("end_line"),
        end_column=raw.get("end_col"),
    )
