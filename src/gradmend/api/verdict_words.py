"""A verdict on a program's gradients, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradmend.api.watching import words_of
from gradmend.report.counts import count

if TYPE_CHECKING:
    from gradmend.api.auditing import Leaf, Verdict

_MOST_ROWS = 40


def words(verdict: Verdict) -> str:
    n = verdict.calls
    calls = count(n, "backward call")
    lines = []
    tensors = count(len(verdict.leaves), "tensor")
    if verdict.wrong:
        worst = max(leaf.wrong for leaf in verdict.wrong)
        lines.append(
            f"gradmend audit: the gradient of {len(verdict.wrong)} of {tensors} is wrong in {worst} of {calls}"
        )
        lines += _table(sorted(verdict.wrong, key=lambda leaf: -leaf.worst))
    elif verdict.stopped:
        lines.append(f"gradmend audit: the gradient is wrong in {len(verdict.stopped)} of {calls}")
    elif verdict.unable and not verdict.leaves:
        lines.append(f"gradmend audit: can't tell: {verdict.unable[0][1]}")
    elif n == 0:
        lines.append("gradmend audit: can't tell: the program made no backward call")
    else:
        right = f"{n - len(verdict.unable)} of {calls}" if verdict.unable else calls
        lines.append(f"gradmend audit: the gradient is right in {right}, for {tensors}")
    if verdict.unable and (verdict.leaves or verdict.stopped):
        lines.append(f"  can't tell of {len(verdict.unable)} of {calls}: {verdict.unable[0][1]}")
    told: set[str] = set()
    conflicts = [c for _, c in verdict.stopped] + [
        c for c in verdict.session.conflicts if c.kind == "silent" and verdict.wrong
    ]
    for conflict in conflicts:
        if conflict.message not in told and len(told) < 3:
            told.add(conflict.message)
            lines += ["", words_of(conflict)]
    return "\n".join(lines)


def _table(rows: list[Leaf]) -> list[str]:
    width = max(len(r.name) for r in rows[:_MOST_ROWS])
    lines = [
        f"  {r.name:<{width}}  {r.shape!s:<12}  off by {_percent(r.worst)} of its largest entry, in {r.wrong} of {r.calls}"
        for r in rows[:_MOST_ROWS]
    ]
    if len(rows) > _MOST_ROWS:
        lines.append(f"  ... and {len(rows) - _MOST_ROWS} more")
    return lines


def _percent(gap: float) -> str:
    return "more than all" if gap == float("inf") else f"{100 * gap:.3g}%"
