"""One excerpt of the source with the lines of a conflict marked, and the steps beside it in the order of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gradmend.report.excerpt import expand, source_line
from gradmend.report.html.text import name, plain, spoken, tensor, where
from gradmend.story.telling import _LABELS
from gradmend.story.words import counted

_CONTEXT = 2  # lines around one that is marked
_EDIT = "GM210"  # edited first, then used again
_FAR = 3  # lines between two that are left out, at least


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened at a line: saved, written, read; used in another way; or a place to look at."""

    what: str  # save, write, read, use, look
    words: str
    at: dict[str, Any]

    @property
    def file(self) -> str | None:
        return None if self.at.get("file") is None else str(self.at["file"])

    @property
    def line(self) -> int:
        return int(self.at.get("line") or 0)


def steps_of(conflict: dict[str, Any]) -> list[Step]:
    """In the order of time: saved, written, read. Without a Save or a Write, the lines to look at."""
    found: list[Step] = []
    saved, backward = conflict.get("saved"), conflict.get("backward")
    label = _LABELS.get(str(conflict.get("rule")))  # of rules whose second place is no Save
    if saved:
        words = label.format(op=spoken(saved.get("op"))) if label else _saved(saved)
        found.append(Step("use" if label else "save", words, saved))
    writes = [Step("write", _written(w), w[0]) for w in _by_line(conflict.get("writes") or [])]
    found = writes + found if conflict.get("rule") == _EDIT else found + writes
    known = {(s.file, s.line) for s in found}
    if backward:
        known.add((str(backward.get("file")), int(backward.get("line") or 0)))
    if not conflict.get("writes"):
        for culprit in conflict.get("culprits") or []:
            if (str(culprit.get("file")), int(culprit.get("line") or 0)) not in known:
                op = culprit.get("op")
                found.append(Step("look", f"look here: {op}" if op else "look here", culprit))
    if backward:
        found.append(Step("read", "read by backward", backward))
    return found


def _saved(saved: dict[str, Any]) -> str:
    slot, info = saved.get("slot"), tensor(saved.get("tensor"))
    return (
        f"saved by {saved.get('op') or 'an op'}"
        + (f" as its {slot}" if slot else "")
        + (f" ({info})" if info else "")
    )


def _by_line(writes: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """`h[1:] += x` is two Writes, by += and by the assignment: one line, one step."""
    lines: dict[tuple[object, object], list[dict[str, Any]]] = {}
    for write in writes:
        lines.setdefault((write.get("file"), write.get("line")), []).append(write)
    return list(lines.values())


def _written(writes: Sequence[dict[str, Any]]) -> str:
    write = writes[0]
    times, info = int(write.get("times") or 1), tensor(write.get("tensor"))
    by = " and ".join(dict.fromkeys(spoken(w.get("op")) for w in writes))
    return (
        f"written by {by}"
        + (f", {counted(times, 'time')}" if times > 1 else "")
        + (", unseen by PyTorch" if write.get("quiet") else "")
        + (f" ({info})" if info else "")
    )


def excerpt(steps: Sequence[Step]) -> str:
    """The steps as a list, then their lines: one excerpt for each file, in the order in which they were met."""
    rows = "".join(
        f'<li class="{name(s.what)}"><b>{n}</b> <span>{plain(s.words)} {_where(s)}</span></li>'
        for n, s in enumerate(steps, 1)
    )
    files = dict.fromkeys(s.file for s in steps if s.file is not None)
    shown = "".join(_file(file, steps, many=len(files) > 1) for file in files)
    chains = "".join(_stack(n, s.at.get("stack")) for n, s in enumerate(steps, 1))
    if chains:
        chains = f"<details><summary>how each line was reached</summary>{chains}</details>"
    return f'<ol class="steps">{rows}</ol>{shown}{chains}' if steps else ""


def _where(step: Step) -> str:
    if step.file is None:
        return ""
    return f"<small>{plain(where(step.file, step.line, step.at.get('function')))}</small>"


def _file(file: str, steps: Sequence[Step], many: bool) -> str:
    marked: dict[int, list[int]] = {}
    for n, step in enumerate(steps):
        if step.file == file and source_line(file, step.line) is not None:
            marked.setdefault(step.line, []).append(n)
    if not marked:
        return ""
    rows: list[str] = []
    before = 0
    for number in _lines(marked):
        text = source_line(file, number)
        if text is None:
            continue
        if before and number != before + 1:
            rows.append('<span class="gap">···</span>')
        before = number
        code = f"<i>{number}</i>{plain(expand(text)) or ' '}"
        if number in marked:
            first = marked[number][0]
            badges = "".join(f'<b class="{name(steps[n].what)}">{n + 1}</b>' for n in marked[number])
            rows.append(f'<mark class="{name(steps[first].what)}">{code} {badges}</mark>')
        else:
            rows.append(f"<span>{code}</span>")
    head = f'<p class="file">{plain(where(file, min(marked)))}</p>' if many else ""
    return f'{head}<pre class="source" tabindex="0">{chr(10).join(rows)}</pre>'


def _lines(marked: Iterable[int]) -> list[int]:
    wanted: set[int] = set()
    for line in marked:
        wanted.update(range(max(1, line - _CONTEXT), line + _CONTEXT + 1))
    lines = sorted(wanted)
    for low, high in pairwise(lines):
        if high - low <= _FAR:
            wanted.update(range(low, high))
    return sorted(wanted)


def _stack(number: int, stack: Iterable[dict[str, Any]] | None) -> str:
    frames = list(stack or [])
    if len(frames) < 2:
        return ""
    rows = "".join(
        f'<li class="{name(f.get("owner", "user"))}">{plain(where(f.get("file"), f.get("line")))} '
        f"{plain(f.get('function') or '')}</li>"
        for f in frames
    )
    return f'<p class="sub">{number}, innermost first</p><ol>{rows}</ol>'
