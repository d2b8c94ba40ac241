"""What is wrong with a program now: facts for the rewrites, from trial runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradmend.fix.source.facts import UPDATES, Event, Facts, Place, carrier_of, from_json
from gradmend.fix.trials.forgive_words import CHANGED, SECOND, ours, refused
from gradmend.fix.trials.runs import Run, places
from gradmend.rules._messages import recognise


def harmful(healed: Run) -> list[dict[str, Any]]:
    """Conflicts that change a gradient, then those PyTorch refuses for nothing."""
    found: list[dict[str, Any]] = healed.extra.get("conflicts", [])
    return sorted(found, key=lambda c: c["kind"] == "refused-but-right")


def weight(healed: Run) -> tuple[int, int]:
    """How much is left to do: places, and how often."""
    found = harmful(healed)
    return len(found), sum(c.get("times") or 1 for c in found)


def is_second(run: Run) -> bool:
    return bool(run.error) and SECOND in str((run.error or {}).get("message"))


def is_refused(run: Run) -> bool:
    return bool(run.error) and refused(str((run.error or {}).get("message")))


def is_changed(run: Run) -> bool:
    return bool(run.error) and CHANGED in str((run.error or {}).get("message"))


def is_ours(run: Run) -> bool:
    """Does the run end in an error of this family?"""
    return bool(run.error) and ours(str((run.error or {}).get("message")))


def sparse_words(run: Run) -> str:
    """An error of PyTorch's sparse tensors, in one line: what happened where, and what to write. Only its author can."""
    error = run.error or {}
    story = recognise(str(error.get("type")), str(error.get("message")))
    if story is None or not story.sure:
        return ""
    at = run.chain()[:1]
    place = f" ({at[0].file}:{at[0].line})" if at else ""
    return f"{story.rule}, {story.title}{place}. {story.write.rstrip('.')}"


def facts_of(plain: Run, healed: Run | None) -> list[Facts]:
    """Every conflict now known, the one to fix first in front."""
    found: list[Facts] = []
    if is_refused(plain):
        error = plain.error or {}
        event = Event(chain=plain.chain(), direct=error.get("direct", True))
        # The refused line is also where a clone may be needed: it stands for the save as well.
        found.append(Facts(message=str(error.get("message")), writes=(event,), saved=event, forward=True))
    elif is_second(plain):
        calls = {places(c["stack"]): None for c in plain.calls}
        events = tuple(Event("backward", None, chain) for chain in calls)
        message = str((plain.error or {}).get("message"))
        carrier = carrier_of(healed.extra.get("carrier")) if healed is not None else None
        found.append(
            Facts(message=message, writes=events, backward=plain.chain(), second=True, carrier=carrier)
        )
    conflicts = harmful(healed) if healed else []
    told = [from_json(c, _backward(c, healed)) for c in conflicts]
    return [*found, *(replace(f, others=_others(f, told)) for f in told)]


def _others(facts: Facts, told: list[Facts]) -> tuple[Event, ...]:
    """Updates of other parameters, told as conflicts of their own."""
    if facts.rule not in UPDATES:
        return ()
    every = [w for f in told if f.rule in UPDATES for w in f.writes if w not in facts.writes]
    return tuple({w.chain: w for w in every}.values())


def _backward(conflict: dict[str, Any], healed: Run | None) -> tuple[Place, ...]:
    """The lines that led to the backward call; of all such calls, where a helper makes them for several callers."""
    at = conflict.get("backward") or {}
    found: dict[Place, None] = {}
    for call in healed.calls if healed else ():
        stack = call["stack"]
        if any(f["file"] == at.get("file") and f["line"] == at.get("line") for f in stack):
            found |= dict.fromkeys(places(stack))
    return tuple(found)
