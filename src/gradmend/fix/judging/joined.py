"""Several backward calls taken as one: their losses and gradients add up.

An edit that sums losses makes one call of several. What it is compared with is the sum of what they gave.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gradmend.fix.trials.runs import Run

Lines = frozenset[tuple[str, int]]  # where the calls are that become one


def joined(run: Run, series: Iterable[Lines]) -> Run:
    """The run with each series of calls from one of these sets of lines as one call."""
    for lines in series:
        run = replace(run, calls=[_sum(group) for group in _groups(run, lines)])
    return run


def parts(call: dict[str, Any]) -> int:
    """How many calls were made one here."""
    return int(call.get("parts", 1))


def _groups(run: Run, lines: Lines) -> list[list[dict[str, Any]]]:
    """Calls in order, those that belong together in one list: each line once, or one line again and again."""
    found: list[list[dict[str, Any]]] = []
    seen: set[tuple[str, int]] = set()
    for call in run.calls:
        at = next(((f["file"], f["line"]) for f in call["stack"] if (f["file"], f["line"]) in lines), None)
        again = at in seen and not (len(lines) == 1 and _same_graph(found[-1][-1], call))
        if at is None or not seen or again:
            found.append([call])
            seen = {at} if at is not None else set()
        else:
            found[-1].append(call)
            seen.add(at)
    return found


def _same_graph(last: dict[str, Any], call: dict[str, Any]) -> bool:
    """Nothing was computed between two calls: the only new node is the one made to ask."""
    return bool(call["made"] - last.get("done", -2) == 1)


def _sum(calls: list[dict[str, Any]]) -> dict[str, Any]:
    if len(calls) == 1:
        return calls[0]
    first, last = calls[0], calls[-1]
    grads: dict[str, Any] = {}
    names: dict[str, str] = {}
    for call in calls:
        for key, grad in call["grads"].items():
            name = call.get("names", {}).get(key, key)
            home = f"leaf {name}" if key.startswith("leaf") and name != key else key
            names[home] = name
            grads[home] = grads[home] + grad if home in grads else grad
    return {
        **first,
        "roots": [sum(r) for r in zip(*(c["roots"] for c in calls), strict=False)],
        "dtype": [d for c in calls for d in c["dtype"]],
        "parts": sum(map(parts, calls)),
        "grads": grads,
        "names": names,
        **{key: last[key] for key in ("after", "done", "failed") if key in last},
    }
