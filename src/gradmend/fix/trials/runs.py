"""The parent's side of trial runs: start the host, ask for a run, read what it recorded."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradmend.fix.source.facts import Place
from gradmend.fix.trials import door
from gradmend.fix.trials.client import Host, preload
from gradmend.fix.trials.forgive_words import in_short
from gradmend.fix.trials.scratch import Scratch


@dataclass(slots=True)
class Run:
    """One trial run, read back. File names are the user's."""

    outcome: str  # finished, stopped, error, late, broken
    calls: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    state: dict[str, Any] = field(default_factory=dict)
    stdout: str = ""
    stderr: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ran(self) -> bool:
        return self.outcome in ("finished", "stopped")

    @property
    def why(self) -> str:
        """One line on how the run ended."""
        if self.outcome == "late":
            return "it did not end within the time limit"
        if self.error:
            lines = str(self.error.get("message", "")).strip().splitlines()
            said = in_short(lines[0]) if lines else ""
            return said or f"{self.error.get('type')}: {lines[0] if lines else ''}"
        return self.outcome

    @property
    def place(self) -> str:
        at = (self.error or {}).get("stack") or []
        return f" ({Path(at[0]['file']).name}:{at[0]['line']})" if at else ""

    def chain(self) -> tuple[Place, ...]:
        return places((self.error or {}).get("stack") or [])


def places(stack: list[dict[str, Any]]) -> tuple[Place, ...]:
    return tuple(
        Place(
            f["file"],
            f["line"] or 0,
            f.get("function", ""),
            f.get("col"),
            f.get("end_line"),
            f.get("end_col"),
        )
        for f in stack
    )


class Runner:
    """Trial runs of one script. Use as a context manager: nothing is left behind, also after Ctrl-C."""

    def __init__(
        self,
        script: Path,
        argv: list[str],
        cwd: Path,
        steps: int,
        seconds: float,
        host: Host | None = None,
        module: str | None = None,
        allow: frozenset[str] = frozenset(),
    ) -> None:
        self.scratch = Scratch(script, cwd)
        self.module, self.allow = module, allow
        self.prefix: dict[str, Any] = {}  # the copy of the plain run that later ones start from
        self.kept: Path | None = None
        self.argv, self.steps, self.seconds = argv, steps, seconds
        self.host = host or Host(preload(self.scratch.script))
        self._own = host is None
        self.runs = 0

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._own:
            self.host.close()
        self.scratch.close()

    def run(self, sources: Mapping[str, bytes], mode: str, **options: Any) -> Run:
        return self.together([(sources, mode, options)])[0]

    def together(self, wanted: Sequence[tuple[Mapping[str, bytes], str, dict[str, Any]]]) -> list[Run]:
        """Make several runs side by side; each in a copy of its own."""
        trees = [self.scratch.mirror(sources) for sources, _, _ in wanted]
        try:
            asked = [self._request(t, mode, o) for t, (_, mode, o) in zip(trees, wanted, strict=True)]
            shared = all(self._shares(*one) for one in wanted)
            answers = door.ask(self.prefix["socket"], asked) if shared else None
            if answers is None:
                answers = self.host.ask(asked)
            return [self._answer(t, r, a) for t, r, a in zip(trees, asked, answers, strict=True)]
        finally:
            for tree in trees:
                if tree != self.kept:
                    self.scratch.drop(tree)

    def _shares(self, sources: Mapping[str, bytes], mode: str, options: dict[str, Any]) -> bool:
        """Can the run start from the copy that the plain run left behind?"""
        if not self.prefix or mode not in door.MODES or not set(options) <= {"limit", "retain", "cut"}:
            return False
        if set(sources) - {str(self.scratch.script)}:
            return False  # a module may be loaded already
        line = self.prefix["line"]
        text = sources.get(str(self.scratch.script))
        before = self.scratch.script.read_bytes().splitlines()[:line]
        return text is None or text.splitlines()[:line] == before

    def _request(self, tree: Path, mode: str, options: dict[str, Any]) -> dict[str, Any]:
        self.runs += 1
        scratch = self.scratch
        out = scratch.top / f"run{self.runs}"
        script = scratch.inside(tree, scratch.script)
        inside = scratch.cwd.is_relative_to(scratch.root)
        return {
            "script": script,
            "argv": self.argv,
            "cwd": scratch.inside(tree, scratch.cwd) if inside else str(scratch.cwd),
            "path0": scratch.inside(tree, scratch.cwd) if self.module and inside else os.path.dirname(script),
            "module": self.module,
            "allow": sorted(self.allow),
            "mapping": {str(scratch.root): str(tree)},
            "roots": [str(scratch.top)],
            "snapshot": str(scratch.top / "door") if self._is_first(mode, options) else None,
            "from_line": self.prefix.get("line", 0),
            "scratch": str(scratch.top),
            "out": str(out),
            "mode": mode,
            "limit": self.steps,
            "seconds": self.seconds,
            **options,
        }

    def _answer(self, tree: Path, request: dict[str, Any], answer: dict[str, Any]) -> Run:
        out = Path(request["out"])
        if answer.get("late"):
            return Run("late", stderr=_text(f"{out}.stderr"), stdout=_text(f"{out}.stdout"))
        try:
            with open(out, "rb") as file:
                raw = pickle.load(file)
        except (OSError, EOFError, pickle.UnpicklingError):
            status = answer.get("status")
            error = {
                "type": "Exit",
                "message": f"the program ended the process itself (status {status})",
                "stack": [],
            }
            return Run("error", error=error, stderr=_text(f"{out}.stderr"))
        finally:
            out.unlink(missing_ok=True)
        run = self._read(raw, tree, _text(f"{out}.stdout"), _text(f"{out}.stderr"))
        run.seconds = answer.get("took", 0.0)
        if run.extra.get("prefix"):
            self.prefix, self.kept = run.extra["prefix"], tree
        return run

    def _is_first(self, mode: str, options: dict[str, Any]) -> bool:
        here = sys.platform == "linux" and self.module is None
        return here and self.runs == 1 and mode == "plain" and not options

    def _read(self, raw: dict[str, Any], tree: Path, stdout: str, stderr: str) -> Run:
        def real(stack: list[dict[str, Any]]) -> None:
            for frame in stack:
                frame["file"] = self.scratch.real(tree, frame["file"])

        for call in raw["calls"]:
            real(call["stack"])
        if raw.get("error"):
            real(raw["error"].get("stack") or [])
            for copy in (tree, self.kept or tree):
                raw["error"]["message"] = raw["error"]["message"].replace(str(copy), str(self.scratch.root))
        for conflict in raw.get("conflicts", ()):
            for part in (conflict.get("saved") or {}, conflict.get("backward") or {}, *conflict["writes"]):
                real([part] if part.get("file") else [])
                real(part.get("stack") or [])
            real(conflict["culprits"])
            history = conflict.get("history") or {}
            places = history.get("places", ())
            if places:
                history["places"] = [(self.scratch.real(tree, f) if f else f, n, w) for f, n, w in places]
        carrier = raw.get("carrier")
        if carrier:
            carrier["file"] = self.scratch.real(tree, carrier["file"])
            real([frame for key in ("stored", "used_by") if (frame := carrier[key])])
        known = {"outcome", "calls", "error", "state"}
        extra = {k: v for k, v in raw.items() if k not in known}
        extra["live"] = [(self.scratch.real(tree, f), n) for f, n in extra.get("live", [])]
        extra["files"] = [self.scratch.real(tree, f) for f in extra.get("files", [])]
        return Run(
            raw["outcome"], raw["calls"], raw.get("error"), raw.get("state", {}), stdout, stderr, extra
        )


def _text(path: str) -> str:
    try:
        text = Path(path).read_text(errors="replace")
    except OSError:
        return ""
    Path(path).unlink(missing_ok=True)
    return text
