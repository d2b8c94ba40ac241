"""Edited programs, run in trials while there is time."""

from __future__ import annotations

import time
from collections.abc import Callable

from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.text import Text
from gradmend.fix.trials.runs import Run, Runner

_LONGER = 4  # times the plain run's time, for each trial
_ALL_TRIALS = 3  # times the limit of one trial, for all of them together


class Attempts:
    def __init__(self, runner: Runner, tell: Callable[[str], None], seconds: float) -> None:
        self.runner, self.tell = runner, tell
        self.until = time.monotonic() + seconds
        self.texts: dict[str, Text] = {}  # the original

    @property
    def late(self) -> bool:
        return time.monotonic() > self.until

    def take_time(self, plain: Run) -> None:
        """A limit that grows with the program: a healed run takes longer than a plain one, which may stop early."""
        self.runner.seconds = max(self.runner.seconds, _LONGER * plain.seconds)
        self.until = max(self.until, time.monotonic() + _ALL_TRIALS * self.runner.seconds)

    def too_long(self, what: str) -> str:
        return f"{what} did not end within {self.runner.seconds:.0f} s: give trials more by --time-limit"

    def original(self) -> Project:
        return Project({f: t.text for f, t in self.texts.items()})

    def changed(self, project: Project) -> dict[str, str]:
        return {f: s for f, s in project.sources.items() if s != self.texts[f].text}

    def encoded(self, project: Project) -> dict[str, bytes]:
        return {f: self.texts[f].encode(s) for f, s in self.changed(project).items()}

    def run(self, project: Project, candidate: Candidate) -> tuple[Project, Run]:
        """The edited program, and its run under plain PyTorch."""
        self.tell(candidate.title)
        edited = project.edited(candidate.sources)
        return edited, self.runner.run(self.encoded(edited), "plain")
