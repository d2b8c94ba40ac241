"""One edit of several taken back: the text as it would be, had that edit never been made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from gradmend.fix.source.candidate import Project
from gradmend.fix.source.text import Cut, splice

_WORDS = re.compile(r"\.clone\(\)|\w+|\s+|.", re.DOTALL)


def without(steps: Sequence[Project], which: int) -> list[Project]:
    """The same steps, from the original on, without what step `which` (from 1) changed. Fails where a later one builds on it."""
    before, after = steps[which - 1], steps[which]
    left = list(steps[:which])
    for later in steps[which + 1 :]:
        texts = dict(later.sources)
        for file, was in before.sources.items():
            if was != after.sources[file]:
                texts[file] = _undone(was, after.sources[file], texts[file])
        left.append(Project(texts))
    return left


def _undone(was: str, edited: str, now: str) -> str:
    """`now` came from `edited`, which came from `was`: without the first of these changes."""
    later = changes(edited, now)
    back: list[Cut] = []
    grown = 0
    for start, end, new in changes(was, edited):
        first = start + grown
        last = first + len(new)
        if any(s < last and first < e for s, e, _ in later):
            raise ValueError("a later edit builds on it")
        moved = sum(len(n) - (e - s) for s, e, n in later if e <= first and (s, e) != (last, last))
        back.append((first + moved, last + moved, was[start:end]))
        grown += len(new) - (end - start)
    return splice(now, back)


def changes(old: str, new: str) -> list[Cut]:
    """What makes `new` of `old`, word by word."""
    a, b = _WORDS.findall(old), _WORDS.findall(new)
    at_old, at_new = _starts(a), _starts(b)
    return [
        (at_old[i], at_old[j], new[at_new[k] : at_new[m]])
        for kind, i, j, k, m in SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
        if kind != "equal"
    ]


def _starts(words: Sequence[str]) -> list[int]:
    out = [0]
    for word in words:
        out.append(out[-1] + len(word))
    return out
