"""`[tool.gradmend]` in pyproject.toml, and what the command line adds to it."""

from __future__ import annotations

import fnmatch
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradmend.check.findings import UNCHECKED
from gradmend.errors import UsageError

DEFAULT_EXCLUDE = (
    ".git", ".hg", ".svn", ".venv", "venv", ".tox", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache", "__pycache__",
    "node_modules", "build", "dist", ".eggs", "*.egg-info", ".ipynb_checkpoints", "site-packages",
)  # fmt: skip
_KEYS = {"select", "ignore", "per-file-ignores", "exclude", "extend-exclude"}


@dataclass(frozen=True)
class Settings:
    select: tuple[str, ...] = ()  # prefixes of codes; empty: all
    ignore: tuple[str, ...] = ()
    per_file: tuple[tuple[str, tuple[str, ...]], ...] = ()
    exclude: tuple[str, ...] = DEFAULT_EXCLUDE
    root: str = field(default="", compare=False)

    def wants(self, rule: str, file: str) -> bool:
        if rule == UNCHECKED:
            return self._unread(file)
        if self.select and not rule.startswith(tuple(self.select)):
            return False
        if self.ignore and rule.startswith(tuple(self.ignore)):
            return False
        return not any(
            rule.startswith(codes)
            for pattern, codes in self.per_file
            if codes and self._matches(file, pattern)
        )

    def _unread(self, file: str) -> bool:
        """That something could not be read is told whatever is selected, and left out only by its own name."""
        mine = [codes for pattern, codes in self.per_file if self._matches(file, pattern)]
        return not any(
            UNCHECKED.startswith(code) and code != "GM" for codes in (self.ignore, *mine) for code in codes
        )

    def _matches(self, file: str, pattern: str) -> bool:
        relative = os.path.relpath(file, self.root).replace(os.sep, "/") if self.root else file
        return fnmatch.fnmatch(relative, pattern) or fnmatch.fnmatch(os.path.basename(file), pattern)

    def excluded(self, path: str) -> bool:
        """A folder or file that is never walked into; a path given by name is checked all the same."""
        name = os.path.basename(path)
        if any(fnmatch.fnmatch(name, p) for p in self.exclude):
            return True
        slashed = [p for p in self.exclude if "/" in p]
        if not slashed:
            return False
        relative = os.path.relpath(path, self.root or os.getcwd()).replace(os.sep, "/")
        return any(fnmatch.fnmatch(relative, p) or relative.startswith(p.rstrip("/*") + "/") for p in slashed)

    @property
    def key(self) -> str:
        return repr((self.select, self.ignore, self.per_file))


class Nearest:
    """For each file the settings of the nearest pyproject.toml above it, as several projects may be checked at once."""

    def __init__(self, select: list[str], ignore: list[str], isolated: bool = False) -> None:
        self._words = (select, ignore, isolated)
        self._known: dict[str, Settings] = {}
        self._top = load("", select, ignore, isolated=True)  # words that are no rules are told at once

    def of(self, folder: str) -> Settings:
        if self._words[2]:
            return self._top
        if folder not in self._known:
            real = os.path.realpath(folder)
            file, up = Path(real, "pyproject.toml"), os.path.dirname(real)
            if real != folder:
                self._known[folder] = self.of(real)
            elif file.is_file() and _own(file) is not None:
                self._known[folder] = load(real, *self._words)
            else:
                self._known[folder] = self.of(up) if up != real else self._top
        return self._known[folder]

    def wants(self, rule: str, file: str) -> bool:
        return self.of(os.path.dirname(file)).wants(rule, file)

    def excluded(self, path: str) -> bool:
        return self.of(os.path.dirname(path)).excluded(path)


def load(start: str, select: list[str], ignore: list[str], isolated: bool = False) -> Settings:
    """The nearest pyproject.toml above `start` that has [tool.gradmend], with the command line's words on top."""
    table, root = ({}, "") if isolated else _table(start)
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise UsageError(
            f"{root}/pyproject.toml: [tool.gradmend] has no setting {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}"
        )
    per_file = table.get("per-file-ignores", {})
    if not isinstance(per_file, dict):
        raise UsageError(
            f"{root}/pyproject.toml: per-file-ignores must be a table of patterns and lists of codes"
        )
    exclude = _list(table, "exclude", root) if "exclude" in table else list(DEFAULT_EXCLUDE)
    return Settings(
        select=_codes(select or _list(table, "select", root)),
        ignore=_codes(ignore or _list(table, "ignore", root)),
        per_file=tuple((p, _codes(_checked(c, f"per-file-ignores.{p}", root))) for p, c in per_file.items()),
        exclude=(*exclude, *_list(table, "extend-exclude", root)),
        root=root,
    )


def _table(start: str) -> tuple[dict[str, Any], str]:
    try:
        folder = Path(start).resolve()
    except (OSError, RuntimeError) as bad:  # a link to itself; a folder that is gone
        raise UsageError(f"can't read {start}: {bad}") from None
    for parent in (folder, *folder.parents) if folder.is_dir() else folder.parents:
        file = parent / "pyproject.toml"
        if file.is_file() and (found := _own(file)) is not None:
            return found, str(parent)
    return {}, ""


def _own(file: Path) -> dict[str, Any] | None:
    import tomllib

    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as bad:  # no UTF-8, no TOML, a number too long
        raise UsageError(f"can't read {file}: {bad}") from None
    tool = content.get("tool", {})
    found = tool.get("gradmend") if isinstance(tool, dict) else None
    if found is not None and not isinstance(found, dict):
        raise UsageError(f"{file}: [tool.gradmend] must be a table")
    return found


def _list(table: dict[str, Any], key: str, root: str) -> list[str]:
    return _checked(table.get(key, []), key, root)


def _checked(value: Any, key: str, root: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise UsageError(f"{root}/pyproject.toml: {key} must be a list of strings")
    return value


def _codes(words: list[str]) -> tuple[str, ...]:
    """Codes or their beginnings, "ALL" for every one; an unknown one is a mistake worth hearing of."""
    if not words:
        return ()
    from gradmend.rules import codes

    known = codes()
    found: list[str] = []
    for word in (part.strip().upper() for text in words for part in text.split(",")):
        if word == "ALL":
            found.append("GM")
        elif word:
            if not any(code.startswith(word) for code in (UNCHECKED, *known)):
                raise UsageError(f"there is no rule {word}; the rules are {known[0]} to {known[-1]}")
            found.append(word)
    return tuple(found)
