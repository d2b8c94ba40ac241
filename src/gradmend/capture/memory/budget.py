"""What healing may keep: sizes as people write them, and the words when they are exceeded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradmend.capture.sites import resolve
from gradmend.errors import UsageError

if TYPE_CHECKING:
    from gradmend.capture.ledger.entries import Write

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse(budget: int | str | None) -> int | None:
    """512, "512MB", "1.5 GiB" in bytes."""
    if budget is None or (isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0):
        return budget
    match = (
        re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", budget)
        if isinstance(budget, str)
        else None
    )
    if match is None or match[2].upper() not in _UNITS:
        raise UsageError(
            f"budget {budget!r} is not a size: give bytes, or a string such as '512MB' or '2GiB'"
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


def readable(nbytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"


def over_budget(budget: int, kept: int, writes: Sequence[Write]) -> str:
    largest: Counter[str] = Counter()
    for written in writes:
        frame = resolve(written.raw).user
        place = f"{frame.file}:{frame.line}" if frame else "an unknown line"
        largest[f"{place} ({written.op})"] += written.kept
    top = "\n".join(f"  {readable(n):>10}  {place}" for place, n in largest.most_common(5) if n)
    return (
        f"healing would keep {readable(kept)} of overwritten values, more than its budget of {readable(budget)}.\n"
        f"The largest writers:\n{top}\n"
        "Raise the budget, call backward() sooner so that graphs are freed, or write out of place at these lines."
    )
