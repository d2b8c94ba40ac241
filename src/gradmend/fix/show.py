"""A plan in words: the diff, the proof, what else was tried; and the same as a Session's JSON."""

from __future__ import annotations

import difflib
import os
from typing import Any

from gradmend.fix.judging.cost import Cost
from gradmend.fix.judging.judge import WORDS
from gradmend.fix.search.outcome import Plan, Tried
from gradmend.fix.source.text import Text

_MOST_REJECTED = 2


def diff(original: dict[str, Text], sources: dict[str, str]) -> str:
    """A unified diff that `patch -p1` takes, with names relative to here where they are below."""
    out: list[str] = []
    for file, new in sources.items():
        name = os.path.relpath(file) if not os.path.relpath(file).startswith("..") else file.lstrip("/")
        old, new = original[file].as_typed(original[file].text), original[file].as_typed(new)
        lines = difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
        out += [
            line if line.endswith(("\n", "\r")) else line + "\n\\ No newline at end of file\n"
            for line in lines
        ]
    return "".join(out)


def proof(plan: Plan, cost: Cost | None) -> str:
    """The paragraph under the diff."""
    assert plan.verdict is not None and plan.basis is not None
    lines = [f"fix: {'; then '.join(c.title for c in plan.chosen)}"]
    calls, gradients = plan.verdict.calls, plan.verdict.gradients
    what = f"{calls} backward call{'s' * (calls != 1)}, {gradients} gradient{'s' * (gradients != 1)}"
    if plan.verdict.more:
        what = f"the first {what}"
    if plan.basis == "differences":
        some = f" (of {plan.verdict.of})" if plan.verdict.of > calls else ""
        lines.append(
            f"proven: {what}{some} agree with {WORDS[plan.basis]}, from equal parameters in each call"
        )
    elif any(c.startswith("forward:") for c in plan.verdict.changed):
        lines.append(
            f"proven: {what} are those of the forward that runs now; what comes before the update is as it was"
        )
    else:
        lines.append(f"proven: {what} equal to rounding to {WORDS[plan.basis]}")
    if plan.verdict.exact and plan.basis != "differences":
        lines.append("        parameters, buffers, files and printed output are equal as well")
    if plan.verdict.more:
        lines.append("told: the program makes more backward calls than were judged: --steps N judges more")
    elif plan.basis == "differences" and plan.verdict.of > calls:
        lines.append(f"told: only {calls} of {plan.verdict.of} backward calls were judged")
    lines += [f"told: {changed_words(name)}" for name in plan.verdict.changed[:5]]
    if plan.meaning:
        lines.append(f"told: {plan.meaning}")
    if plan.seeded:
        lines.append("told: the program draws its seed from the clock; in the trials it was a fixed one")
    if cost is not None:
        lines.append(f"cost: {cost}")
    lines += [f"note: {n}" for n in dict.fromkeys(c.note for c in plan.chosen if c.note)]
    lines += [f"option: {line}" for line in _options(plan)]
    lines += _other_gradients(plan)
    rejected = [t for t in plan.tried if not t.verdict.same and not t.step]
    lines += [f"rejected: {line}" for line in _reasons(rejected)]
    return "\n".join(lines) + "\n"


def changed_words(change: str) -> str:
    part, _, name = change.partition(":")
    if part == "forward":
        return f"the forward is computed again after the update: {name}"
    if part == "output":
        return "the program prints other values than under healing"
    if part == "stderr":
        return "the program writes something else to stderr than under healing"
    if part == "file":
        return f"the file `{name}` has other content than under healing"
    if part == "named":
        return f"`{name}` holds another value at the end than under healing"
    return f"{name} ends with other values: the moved update applies the gradients that are there when it runs now"


def _options(plan: Plan) -> list[str]:
    """Moved updates with equal gradients that leave other things behind: cheaper, and for the author to choose."""
    moved = [t for t in plan.tried if t.verdict.same and t.verdict.changed and t.candidate.kind == "move"]
    moved = [t for t in moved if t.candidate not in plan.chosen]
    return [
        f"{t.candidate.title}: the same gradients, but {changed_words(t.verdict.changed[0])}"
        for t in moved[:2]
    ]


def _other_gradients(plan: Plan) -> list[str]:
    """Edits that mean something else, with what they mean and their diff."""
    lines: list[str] = []
    for option in plan.options:
        lines.append(f"option: {option.candidate.title}: {option.candidate.note} ({option.told})")
        if option.sources != plan.sources:  # else it is shown already
            lines += [f"        {line}" for line in diff(plan.original, option.sources).splitlines()]
    return lines


def _reasons(tried: list[Tried]) -> list[str]:
    lines = [f"{t.candidate.title}: {t.verdict.why.splitlines()[0][:120]}" for t in tried[:_MOST_REJECTED]]
    if len(tried) > _MOST_REJECTED:
        lines.append(f"and {len(tried) - _MOST_REJECTED} more")
    return lines


def stuck(plan: Plan) -> str:
    """Found, and not proven."""
    lines = [plan.message]
    if plan.facts is not None:
        lines.insert(0, f"found: {plan.facts.message.splitlines()[0].split('. ')[0]}")
    lines += _other_gradients(plan)
    lines += [f"rejected: {line}" for line in _reasons([t for t in plan.tried if not t.verdict.same])]
    return "\n".join(lines) + "\n"


def as_json(plan: Plan, cost: Cost | None, patch: str, written: bool) -> dict[str, Any]:
    """A Session with the fixes in its conflicts."""
    status = {"proven": "proven", "unproven": "unproven"}.get(plan.status, "failed")
    fixes = []
    if plan.chosen:
        title = "; then ".join(c.title for c in plan.chosen)
        note = proof(plan, cost) if plan.verdict is not None else plan.message
        fixes.append({"title": title, "diff": patch, "status": status, "note": note, "edits": []})
    for option in plan.options:
        if option.sources != plan.sources:
            shown = diff(plan.original, option.sources)
            note = f"{option.candidate.note} ({option.told})"
            fixes.append(
                {
                    "title": option.candidate.title,
                    "diff": shown,
                    "status": "proven" if option.proven else "unproven",
                    "note": note,
                    "edits": [],
                }
            )
    for t in plan.tried:
        if not t.verdict.same and not t.step:
            why = t.verdict.why
            fixes.append(
                {"title": t.candidate.title, "diff": "", "status": "failed", "note": why, "edits": []}
            )
    conflicts: list[dict[str, Any]] = [dict(c) for c in plan.conflicts]
    if not conflicts and plan.facts is not None:
        conflicts = [_conflict(plan)]
    if conflicts:
        conflicts[0]["fixes"] = fixes
    outcome = {"clean": "clean", "proven": "conflict", "unproven": "conflict"}.get(plan.status, "failed")
    error = None if plan.status in ("clean", "proven") else {"type": "fix", "message": plan.message}
    return {
        "schema": 1,
        "outcome": outcome,
        "conflicts": conflicts,
        "error": error,
        "fix": {
            "status": plan.status,
            "written": written,
            "oracle": plan.basis,
            "extra_bytes": cost.bytes if cost else None,
            "extra_seconds": cost.seconds if cost else None,
            "files": sorted(plan.sources),
        },
    }


def _conflict(plan: Plan) -> dict[str, Any]:
    facts = plan.facts
    assert facts is not None
    places = [w.chain[0] for w in facts.writes if w.chain]
    return {
        "rule": facts.rule,
        "kind": facts.kind,
        "message": facts.message.splitlines()[0],
        "culprits": [{"file": p.file, "line": p.line, "op": ""} for p in places],
        "saved": None,
        "writes": [],
        "backward": None,
        "healed_bytes": 0,
    }
