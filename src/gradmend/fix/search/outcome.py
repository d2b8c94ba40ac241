"""What a search comes to: the edits, their proof or the reason why there is none, and what is left to the author."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gradmend.fix.judging.compare import Verdict
from gradmend.fix.judging.joined import Lines
from gradmend.fix.judging.judge import Basis
from gradmend.fix.source.candidate import Candidate
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Text


@dataclass(slots=True)
class Tried:
    candidate: Candidate
    verdict: Verdict
    step: bool = False  # fixed this conflict, others are left


@dataclass(frozen=True, slots=True)
class Option:
    """An edit that is left to the author: one that means another gradient, or does more than was asked."""

    candidate: Candidate
    sources: dict[str, str]
    told: str  # how its first difference shows
    proven: bool = False  # the same gradients


@dataclass(slots=True)
class Plan:
    """The end of the story: what to change, how it was proven, or why nothing is."""

    status: str  # clean, proven, unproven, stuck
    message: str = ""
    original: dict[str, Text] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # file -> new text, changed files only
    chosen: list[Candidate] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    basis: Basis | None = None
    verdict: Verdict | None = None
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    facts: Facts | None = None
    options: list[Option] = field(default_factory=list)
    seconds: float = 0.0  # what the plain run took
    seeded: bool = False  # it draws its seed from the clock: in the trials it was a fixed one
    meaning: str = ""  # of a refused write to a leaf
    joined: tuple[Lines, ...] = ()  # backward calls of the original that are one now
