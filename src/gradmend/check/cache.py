"""What was found before: one file of JSON, keyed by the content of each source and of all that it imported.

Settings are applied after it, so that changing them costs nothing; another version of Gradmend or of its table starts anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gradmend import __version__
from gradmend.check.files import Result, fingerprint, fingerprint_of
from gradmend.check.findings import Finding, Place, Severity, StaticFix, TextEdit

_FORMAT = 4


class Cache:
    def __init__(self, folder: str | None) -> None:
        self.path = Path(folder) / "check.json" if folder else None
        self._prints: dict[str, str] = {}
        self._entries: dict[str, Any] = {}
        self._changed = False
        if self.path is not None:
            self._load()

    @property
    def _stamp(self) -> str:
        return f"{_FORMAT} {__version__} {_own_fingerprint()}"

    def _load(self) -> None:
        assert self.path is not None
        try:
            if not self.path.is_file():
                return  # none; or a FIFO, which would be waited for
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content.get("stamp") == self._stamp and isinstance(content["files"], dict):
                self._entries = content["files"]
        except (OSError, ValueError, AttributeError, KeyError, RecursionError):
            pass  # none, or not ours: made anew

    def get(self, file: str) -> Result | None:
        entry = self._entries.get(_key(file))
        if entry is None:
            return None
        try:
            depends = {_is(f, str): _is(p, str) for f, p in entry["depends"].items()}
            if not depends or any(self._print(f) != p for f, p in depends.items()):
                return None
            return Result(
                file,
                [_finding(f) for f in entry["findings"]],
                "",
                _is(entry["lines"], int),
                _is(entry["stopped"], bool),
                depends,
            )
        except (KeyError, TypeError, AttributeError, ValueError):
            return None  # not as we left it

    def put(self, result: Result) -> None:
        if self.path is None or result.unreadable:
            return
        self._changed = True
        self._entries[_key(result.file)] = {
            "lines": result.lines,
            "stopped": result.stopped,
            "depends": result.depends,
            "findings": [_raw(f) for f in result.findings],
        }

    def _print(self, file: str) -> str:
        if file not in self._prints:
            self._prints[file] = fingerprint_of(file)
        return self._prints[file]

    def close(self) -> None:
        if self.path is None or not self._changed:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            ignore = self.path.parent / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n", encoding="utf-8")
            part = self.path.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps({"stamp": self._stamp, "files": self._entries}), encoding="utf-8")
            os.replace(part, self.path)
        except OSError:
            pass  # a cache that can't be written is only slower


def _key(file: str) -> str:
    """A file as it was named: what was found names it so, and the files it rests on beside it."""
    return f"{os.path.abspath(file)}\n{file}"


def _own_fingerprint() -> str:
    """Of the checker itself, by the sizes and times of its files: cheap, and enough while it is being changed."""
    here = Path(__file__).parent
    parts = [
        f"{p.name}:{s.st_size}:{s.st_mtime_ns}"
        for p in sorted(here.rglob("*"))
        if p.suffix in (".py", ".json")
        for s in [p.stat()]
    ]
    return fingerprint("".join(parts).encode())


def _raw(finding: Finding) -> dict[str, Any]:
    there = finding.stands_for
    return {
        **finding.as_json(),
        "stands_for": there.as_json() if there is not None else None,
        "tried": finding.tried,
    }


def _is(value: Any, kind: type) -> Any:
    """The value; TypeError where it is of another kind than we left it."""
    if type(value) is not kind:
        raise TypeError
    return value


def _finding(raw: dict[str, Any]) -> Finding:
    fix = raw["fix"]
    severity: Severity = "error" if raw["severity"] == "error" else "warning"
    return Finding(
        _place(raw),
        _is(raw["rule"], str),
        severity,
        _is(raw["message"], str),
        _is(raw["help"], str),
        tuple((_is(r["message"], str), _place(r)) for r in raw["related"]),
        StaticFix(_is(fix["message"], str), fix["applicability"] == "safe", tuple(map(_edit, fix["edits"])))
        if fix
        else None,
        stands_for=_place(raw["stands_for"]) if raw["stands_for"] else None,
        tried=raw["tried"],
    )


def _edit(raw: dict[str, Any]) -> TextEdit:
    return TextEdit(*_span(raw), _is(raw["text"], str))


def _place(raw: dict[str, Any]) -> Place:
    cell = raw.get("cell")
    return Place(_is(raw["file"], str), *_span(raw), None if cell is None else _is(cell, int))


def _span(raw: dict[str, Any]) -> tuple[int, int, int, int]:
    return (
        _is(raw["line"], int),
        _is(raw["column"], int),
        _is(raw["end_line"], int),
        _is(raw["end_column"], int),
    )
