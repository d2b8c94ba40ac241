"""Candidate edits for a conflict: one kind of edit per file, all of them tried in order of rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module

from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts

Rewrite = Callable[[Project, Facts], Iterable[Candidate]]

KINDS = (
    "views_apart",
    "rebind",
    "returned",
    "loop_item",
    "inplace_flag",
    "out_argument",
    "live_edit",
    "numpy_edit",
    "functional",
    "collect",
    "no_grad",
    "grad_off",
    "localize",
    "move",
    "recompute",
    "clone_save",
    "clone_write",
    "fresh_leaf",
    "numpy_copy",
    "checkpoint_rng",
    "boundary",
    "cache_again",
    "sum_losses",
    "second_backward",
    "mark_dirty",
    "custom_function",
    "clone_parameters",
)

# They bind a new tensor to the name. Of a leaf that is no leaf any more, and no optimizer knows it: the last resort.
_REBINDING = frozenset({"rebind", "live_edit", "functional", "clone_write"})
_LAST = 50
# A stepped optimizer wrote parameters that a module uses: only these edits are about that.
_STEPPED = frozenset({"GM104", "GM203"})
_OF_STEPS = ("move", "recompute", "clone_parameters")
_DIRECT = (*_OF_STEPS, "clone_save")


def propose(project: Project, facts: Facts) -> list[Candidate]:
    """Every candidate, best first; edits that give the same text are one."""
    found: dict[tuple[tuple[str, str], ...], Candidate] = {}
    leaf = facts.saved is not None and facts.saved.leaf
    for kind in _fitting(facts):
        rewrite: Rewrite = import_module(f"{__name__}.{kind}").propose
        for candidate in rewrite(project, facts):
            changed = {f: s for f, s in candidate.sources.items() if s != project.sources.get(f)}
            key = tuple(sorted(changed.items()))
            if leaf and kind in _REBINDING:
                candidate = replace(candidate, rank=candidate.rank + _LAST)
            if changed and (key not in found or found[key].rank > candidate.rank) and _parses(changed):
                found[key] = candidate
    return sorted(found.values(), key=lambda c: c.rank)


def _fitting(facts: Facts) -> tuple[str, ...]:
    if facts.rule not in _STEPPED or facts.saved is None or not facts.saved.leaf:
        return KINDS
    return _DIRECT if facts.saved.direct else _OF_STEPS


def _parses(changed: dict[str, str]) -> bool:
    try:
        for file, text in changed.items():
            compile(text, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True
