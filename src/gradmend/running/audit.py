"""`gradmend run --audit`: the program as it is, and a verdict on its gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gradmend.api.auditing import Audit, Verdict
from gradmend.integrations import torchrun
from gradmend.model import Conflict
from gradmend.own_imports import own_imports
from gradmend.running import output
from gradmend.running.about import about
from gradmend.running.aloud import put
from gradmend.running.runner import Options, ended
from gradmend.running.uncaught import raised_by


def audit_program(options: Options, go: Callable[[], None], calls: int) -> int:
    """The program's own exit code, or 1 where a gradient is wrong."""
    said = False

    def say(verdict: Verdict) -> None:
        nonlocal said
        said = True
        with own_imports():
            put(str(verdict))

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
