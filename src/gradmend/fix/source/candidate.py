"""A proposed edit of the user's files, before anything is proven about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache

from gradmend.fix.source.tree import Tree


@dataclass(frozen=True, slots=True)
class Candidate:
    title: str
    kind: str
    rank: int  # cheapest in memory and smallest in diff first
    sources: Mapping[str, str] = field(hash=False)  # file -> its whole new text
    note: str = ""  # what this fix means, when that is not obvious
    joined: frozenset[tuple[str, int]] = frozenset()  # lines of backward calls that it makes one


@dataclass(frozen=True, slots=True)
class Project:
    """The texts of the user's files as they stand now (edits of earlier conflicts included)."""

    sources: Mapping[str, str]

    def edited(self, changes: Mapping[str, str]) -> Project:
        return Project({**self.sources, **changes})

    def tree(self, file: str) -> Tree | None:
        text = self.sources.get(file)
        return None if text is None else _tree(text, file)

    def lines_before(self, lines: Iterable[tuple[str, int]], was: Project) -> frozenset[tuple[str, int]]:
        """Where unchanged lines of these files were in another version of them."""
        found = set()
        for file, line in lines:
            old, new = (p.sources[file].splitlines() for p in (was, self))
            for a, b, size in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
                if b < line <= b + size:
                    found.add((file, line - b + a))
        return frozenset(found)


@lru_cache(maxsize=256)
def _tree(text: str, file: str) -> Tree:
    return Tree(text, file)
