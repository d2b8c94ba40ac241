"""`gradmend run --audit`: the program as it is, and a verdict on its gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gradmend.api.auditing import Audit, Leaf, Verdict
from gradmend.integrations import torchrun
from gradmend.model import Conflict
from gradmend.own_imports import own_imports
from gradmend.running import output
from gradmend.running.about import about
from gradmend.running.aloud import put
from gradmend.running.output import count
from gradmend.running.runner import Options, ended
from gradmend.running.uncaught import raised_by

_MOST_ROWS = 40


def audit_program(options: Options, go: Callable[[], None], calls: int) -> int:
    """The program's own exit code, or 1 where a gradient is wrong."""
    said = False

    def say(verdict: Verdict) -> None:
        nonlocal said
        said = True
        with own_imports():
            put(words(verdict))

    audit = Audit(calls, say, options.paranoid)
    verdict = audit.__enter__()
    try:
        end = ended(raised_by(go), verdict.session)
    finally:
        with own_imports():
            audit.__exit__(None, None, None)
    if verdict.is_wrong:
        verdict.session.outcome = "conflict"
    with own_imports():
        verdict.session.run = about(
            options.target, options.args, ["gradmend", "run", "--audit", options.target, *options.args]
        )
        verdict.session.stats["audit"] = as_json(verdict)
        verdict.session.conflicts[:] = once(verdict.session.conflicts)
        output.write(verdict.session, torchrun.own_path(options.report), torchrun.own_path(options.html))
        if end.stopped_by is not None:
            output.say(verdict.session, stopped_by=end.stopped_by)
    if not said:
        say(verdict)
    return end.leave() or int(verdict.is_wrong)


def once(conflicts: list[Conflict]) -> list[Conflict]:
    """Each backward call meets the same again: one conflict, with how often."""
    met: dict[tuple[str, str], Conflict] = {}
    for conflict in conflicts:
        key = conflict.rule, conflict.message
        known = met.get(key)
        met[key] = replace(known, times=known.times + conflict.times) if known is not None else conflict
    return list(met.values())


def words(verdict: Verdict) -> str:
    from gradmend.api.watching import words_of

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
    elif verdict.unable:
        lines.append(f"gradmend audit: can't tell: {verdict.unable[0][1]}")
    elif n == 0:
        lines.append("gradmend audit: can't tell: the program made no backward call")
    else:
        lines.append(f"gradmend audit: the gradient is right in {calls}, for {tensors}")
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


def as_json(verdict: Verdict) -> dict[str, object]:
    return {
        "wrong": verdict.is_wrong,
        "calls": verdict.calls,
        "leaves": [
            {
                "name": leaf.name,
                "shape": list(leaf.shape),
                "calls": leaf.calls,
                "wrong": leaf.wrong,
                "worst": leaf.worst if leaf.worst != float("inf") else None,
            }
            for leaf in verdict.leaves.values()
        ],
        "stopped": [c.rule for _, c in verdict.stopped],
        "unable": [why for _, why in verdict.unable],
    }
