"""Are two runs the same to rounding: every loss, every gradient, and what they leave behind?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradmend.fix.trials.runs import Run

# Relative to the largest entry; the ops are the same, only their order of rounding may differ.
_ROUNDING = {"torch.float64": 1e-10, "torch.float32": 2e-5, "torch.bfloat16": 2e-2, "torch.float16": 5e-3}

_ZERO = 1e-7  # a norm of rounding errors
_GONE = 0.1  # of the gradient's norm: less is told
_NEAR = 6  # how far apart a moved call may be from its place


@dataclass(frozen=True, slots=True)
class Verdict:
    """`same`: losses and gradients. `exact`: everything the program leaves behind and prints, too."""

    same: bool
    exact: bool = False
    why: str = ""
    changed: tuple[str, ...] = ()  # what an accepted edit leaves behind differently
    calls: int = 0
    gradients: int = 0
    of: int = 0  # backward calls there were to judge, where not all were
    more: bool = False  # the program makes more calls than were asked for


def compare(
    oracle: Run, trial: Run, partial: bool = False, output: bool = True, moved: bool = False
) -> Verdict:
    """`partial`: the trial may stop early, and what it did until then must agree.
    `moved`: its calls may come in another order, if each is one of the oracle's."""
    if not trial.ran and not partial:
        return Verdict(False, why=trial.why)
    ours, theirs = _whole(trial.calls), _whole(oracle.calls)
    if len(ours) != len(theirs) and not (partial and len(ours) < len(theirs)):
        return Verdict(False, why=f"it makes {len(ours)} backward calls, not {len(theirs)}")
    if not theirs and not partial:
        return Verdict(False, why="no backward call to compare")
    gradients = 0
    if moved:
        theirs = _in_order_of(ours, theirs)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=False), 1):
        told = call_gap(a, b, number)
        if told:
            return Verdict(False, why=told)
        gradients += len(b["grads"])
    changed = (*_state(trial, oracle, output), *_left(trial, oracle, output), *_held(ours, theirs))
    more = trial.outcome == "stopped"
    return Verdict(True, not changed, changed=changed, calls=len(ours), gradients=gradients, more=more)


def as_before(plain: Run, trial: Run) -> bool:
    """Whether each backward call that plain PyTorch computed is the same to the last bit."""
    ours, theirs = _whole(trial.calls), _whole(plain.calls)
    return len(ours) >= len(theirs) and all(
        len(a["roots"]) == len(b["roots"])
        and a["grads"].keys() == b["grads"].keys()
        and all(map(_identical, a["roots"], b["roots"]))
        and all(_identical(a["grads"][key], grad) for key, grad in b["grads"].items())
        for a, b in zip(ours, theirs, strict=False)
    )


def _identical(a: Any, b: Any) -> bool:
    return (a is None) == (b is None) and (a is None or np.array_equal(a, b, equal_nan=True))


def effect(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    """How much the first loss that changes does, and which gradients are gone or all but gone, in one clause."""
    return _loss_effect(before, after) + (_vanished(before, after) or _untrained(before, after))


def _vanished(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    old, new = ([_norm(c) for c in calls] for calls in (before, after))
    if new and max(new) < _ZERO:
        return "; all its gradients are zero to rounding: nothing is trained"
    for number, (a, b) in enumerate(zip(old, new, strict=False), 1):
        if b < _GONE * a:
            return f"; the gradient norm of backward call {number} {100 * (b - a) / a:+.3g}%"
    return ""


def _untrained(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    old, new = (
        {k for c in calls for k, g in c["grads"].items() if g is not None and g.any()}
        for calls in (before, after)
    )
    names = {k: n for c in before for k, n in c.get("names", {}).items()}
    lost = [names.get(key, key) for key in sorted(old - new)]
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    return f"; no gradient reaches {lost[0]}{more}" if lost else ""


def _norm(call: dict[str, Any]) -> float:
    return float(np.sqrt(sum((np.abs(g) ** 2).sum() for g in call["grads"].values() if g is not None)))


def _loss_effect(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    for number, (a, b) in enumerate(zip(before, after, strict=False), 1):
        old, new = (float(sum(r.sum() for r in call["roots"])) for call in (a, b))
        if abs(new - old) > 1e-6 * max(abs(old), 1e-12):
            return f"the loss of backward call {number} {100 * (new - old) / max(abs(old), 1e-12):+.2g}%"
    return "no loss of the compared calls changes"


def _in_order_of(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The oracle's calls as the trial makes them: each taken once, the nearest that agrees; else the next in line."""
    left = list(theirs)
    found = []
    for call in ours[: len(theirs)]:
        near = (i for i, other in enumerate(left[:_NEAR]) if not call_gap(call, other, 0))
        found.append(left.pop(next(near, 0)))
    return [*found, *left]


def _whole(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [c for c in calls if not c.get("failed")]


def call_gap(trial: dict[str, Any], oracle: dict[str, Any], number: int) -> str:
    slack = max((_ROUNDING.get(d, 2e-5) for d in oracle["dtype"]), default=2e-5)
    for a, b in zip(trial["roots"], oracle["roots"], strict=False):
        gap = _gap(a, b, _top(b))
        if gap > slack:
            return f"the loss of backward call {number} changes by {_percent(gap)}"
    mine, theirs = _keyed(trial, oracle)
    top = max((_top(g) for g in theirs.values() if g is not None), default=0.0)
    worst, where = 0.0, ""
    for key in {**theirs, **mine}:
        a, b = mine.get(key), theirs.get(key)
        if a is None and b is None:
            continue
        if a is None or b is None:
            given = a if b is None else b
            if given is None or _top(given) <= slack * top:
                continue
            gap = float("inf")
        else:
            gap = _gap(a, b, max(_top(b), 1e-3 * top))
        if gap > worst:
            worst, where = gap, oracle.get("names", {}).get(key) or trial.get("names", {}).get(key) or key
    if worst > slack:
        return f"the gradient of {where.removeprefix('leaf ')} in backward call {number} changes by {_percent(worst)}"
    return ""


def _keyed(trial: dict[str, Any], oracle: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Leaves that are no parameters go by their name where both runs have it, else by their place."""
    mine, theirs = dict(trial["grads"]), dict(oracle["grads"])
    for run, grads in ((trial, mine), (oracle, theirs)):
        names = run.get("names", {})
        for key in list(grads):
            if key.startswith("leaf") and names.get(key, key) != key:
                grads[f"leaf {names[key]}"] = grads.pop(key)
    return mine, theirs


def _top(values: Any) -> float:
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def _gap(a: Any, b: Any, scale: float) -> float:
    if a.shape != b.shape:
        return float("inf")
    both = np.isnan(a) & np.isnan(b) | (a == b)
    apart = np.abs(np.where(both, 0.0, a - b))
    if np.isnan(apart).any():
        return float("inf")
    most = float(apart.max()) if apart.size else 0.0
    return most / scale if scale else (0.0 if most == 0 else float("inf"))


def _state(trial: Run, oracle: Run, output: bool) -> tuple[str, ...]:
    """What the edited program leaves behind differently: parameters and buffers, named tensors, its output."""
    changed: list[str] = []
    for part in ("modules", "named"):
        mine, theirs = trial.state.get(part, {}), oracle.state.get(part, {})
        for key, value in theirs.items():
            other = mine.get(key)
            if other is None:
                if part == "modules":
                    changed.append(f"{part}:{key}")
            elif _gap(other, value, max(_top(value), 1e-6)) > 1e-4:
                changed.append(f"{part}:{key}")
    if output and not same_words(trial.stdout, oracle.stdout):
        changed.append("output:")
    return tuple(changed)


def _left(trial: Run, oracle: Run, output: bool) -> tuple[str, ...]:
    """The files that differ, by name and place in them. Text counts where output does: a log may hold the time."""
    mine, theirs = trial.extra.get("left", {}), oracle.extra.get("left", {})
    changed: dict[str, None] = {}
    for name in {**theirs, **mine}:
        a, b = mine.get(name), theirs.get(name)
        if isinstance(a, str) or isinstance(b, str):
            alike = not output or (isinstance(a, str) and isinstance(b, str) and same_words(a, b))
        else:
            alike = a is not None and b is not None and _gap(a, b, max(_top(b), 1e-6)) <= 1e-4
        if not alike:
            changed[f"file:{name}"] = None
    if output and not same_words(_said(trial.stderr), _said(oracle.stderr)):
        changed["stderr:"] = None
    return tuple(changed)


_WARNING = re.compile(r"^.*\w*Warning: .*\n(?:  .*\n)?", re.MULTILINE)
_TRACE = re.compile(r"^(Traceback |  File |    |gradmend).*\n", re.MULTILINE)


def _said(text: str) -> str:
    """What the program itself writes to stderr: healing warns there, and warnings name lines of a copy."""
    return _TRACE.sub("", _WARNING.sub("", text))


def _held(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> tuple[str, ...]:
    """Local variables that hold another value as a backward begins: other names of what was written."""
    changed: dict[str, None] = {}
    for a, b in zip(ours, theirs, strict=False):
        mine, own = a.get("locals", {}), b.get("locals", {})
        for name in mine.keys() & own.keys():
            if _gap(mine[name], own[name], max(_top(own[name]), 1e-6)) > 1e-4:
                changed[f"named:{name}"] = None
    return tuple(sorted(changed))


_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\binf\b|\bnan\b)")


def same_words(a: str, b: str) -> bool:
    """The same printed text, with numbers equal to four digits."""
    if a == b:
        return True
    if _NUMBER.sub("#", a) != _NUMBER.sub("#", b):
        return False
    mine = np.array([float(n) for n in _NUMBER.findall(a)])
    theirs = np.array([float(n) for n in _NUMBER.findall(b)])
    scale = max(1e-3, float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0.0)))
    return bool(np.allclose(mine, theirs, rtol=1e-4, atol=1e-5 * min(scale, 1.0), equal_nan=True))


def _percent(gap: float) -> str:
    return "a different set of values" if gap == float("inf") else f"{100 * gap:.3g}%"
