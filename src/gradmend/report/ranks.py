"""The sessions of several ranks as one: each conflict once, with the ranks that saw it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradmend.model import Conflict, Outcome, Session

_RANK = re.compile(r"\.rank(\d+)\.[^.]*$")
_MOST_NAMES = 3
_WORST: tuple[Outcome, ...] = ("clean", "healed", "failed", "conflict")


@dataclass(frozen=True, slots=True)
class Seen:
    conflict: Conflict
    ranks: tuple[str, ...]


def names_of(paths: Sequence[str]) -> list[str]:
    """Who met it: "rank 0", where all are reports of ranks; else the files, which may be of different runs."""
    found = [_RANK.search(os.path.basename(path)) for path in paths]
    ranks = [f"rank {rank[1]}" for rank in found if rank]
    if len(ranks) == len(paths) == len(set(ranks)):
        return ranks
    short = [os.path.basename(path) for path in paths]
    return short if len(set(short)) == len(short) else list(paths)


def agree(sessions: Sequence[tuple[str, Session]]) -> list[Seen]:
    """Conflicts of the same rule at the same lines are one, whoever met them."""
    met: dict[object, tuple[Conflict, list[str]]] = {}
    for rank, session in sessions:
        for conflict in session.conflicts:
            save, write = conflict.saved, conflict.writes[0] if conflict.writes else None
            key = (
                conflict.rule,
                conflict.kind,
                save.site.user if save else None,
                write.site.user if write else None,
                conflict.culprits[:1],
                conflict.backward,
            )
            _, ranks = met.setdefault(key, (conflict, []))
            if rank not in ranks:
                ranks.append(rank)
    return [Seen(c, tuple(r)) for c, r in met.values()]


def merged(sessions: Sequence[tuple[str, Session]]) -> Session:
    """One Session for all ranks; each conflict says which of them saw it."""
    everybody = [rank for rank, _ in sessions]
    conflicts = [
        replace(s.conflict, notes=(told(s.ranks, everybody), *s.conflict.notes)) for s in agree(sessions)
    ]
    outcome: Outcome = max((s.outcome for _, s in sessions), key=_WORST.index, default="clean")
    error = next((s.error for _, s in sessions if s.error), None)
    return Session(outcome, conflicts, error, {_stat(everybody): {_bare(r): s.outcome for r, s in sessions}})


def _stat(names: Sequence[str]) -> str:
    return "ranks" if _are_ranks(names) else "sessions"


def _bare(name: str) -> str:
    return name.removeprefix("rank ")


def with_children(session: Session, children: Sequence[tuple[str, Session]]) -> Session:
    """A run and the processes that it started: their conflicts come after its own, each with who met it."""
    if not children:
        return session
    found = [
        replace(s.conflict, notes=(f"met in {_names(s.ranks)}", *s.conflict.notes)) for s in agree(children)
    ]
    outcome: Outcome = max((s.outcome for s in (session, *(c for _, c in children))), key=_WORST.index)
    stats = {**session.stats, "children": {name: child.outcome for name, child in children}}
    return Session(outcome, [*session.conflicts, *found], session.error, stats, session.run)


def _names(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def told(ranks: Sequence[str], everybody: Sequence[str]) -> str:
    missing = [r for r in everybody if r not in ranks]
    if not missing:
        return f"all {len(everybody)} {_stat(everybody)} agree: each of them met this"
    return f"{_say(ranks)} met this, {_say(missing)} did not"


def _are_ranks(names: Sequence[str]) -> bool:
    return all(name.startswith("rank ") for name in names)


def _say(names: Sequence[str]) -> str:
    if len(names) > 1 and _are_ranks(names):
        numbers = [name.removeprefix("rank ") for name in names]
        return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
