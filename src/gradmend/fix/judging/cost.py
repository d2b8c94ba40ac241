"""What a proven fix costs per step: bytes the forward holds, and processor time, both measured."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from gradmend.fix.judging.joined import Lines, joined
from gradmend.fix.trials.runs import Run, Runner

_ROUNDS = 2
_CALLS = 4  # backward calls that are timed
_LONG = 1.0  # seconds: a program that takes longer to get there is not run four times for its cost alone
_NOISE = 0.2
_FEW_STEPS = 1.0  # the same where a program makes one step or two: its time is that of the whole start


@dataclass(frozen=True, slots=True)
class Cost:
    bytes: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        parts = []
        if self.bytes is not None:
            parts.append(f"{_signed(self.bytes)} held by the forward")
        if self.seconds is not None:
            timed = (
                f"{1e3 * self.seconds:+.2f} ms per step" if self.seconds else "no time that can be measured"
            )
            parts.append(timed)
        return ", ".join(parts) or "not measurable: the original never ran through"


def measure(
    runner: Runner,
    sources: Mapping[str, bytes],
    seconds: float,
    retain: bool = False,
    series: tuple[Lines, ...] = (),
) -> Cost:
    """The edited program against the original, both with PyTorch's check of saved tensors off, up to a few backward calls.
    `seconds`: what the program takes to its first backward; `series`: calls of the original that are one in the edited one."""
    before, after = runner.together([({}, "memory", {}), (sources, "memory", {})])
    old, new = before.extra.get("bytes"), after.extra.get("bytes")
    extra = new - old if old is not None and new is not None else None
    if seconds > _LONG:
        return Cost(extra)
    limit = {"limit": _CALLS, "retain": retain}
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(_ROUNDS):
        runs = runner.together([({}, "unchecked", limit), (sources, "unchecked", limit)])
        for edited, run in zip((False, True), runs, strict=True):
            step = _step(run if edited else joined(run, series))
            if step is None:
                return Cost(extra)
            times[edited].append(step)
    more = min(times[True]) - min(times[False])
    share = _NOISE if len(runs[0].calls) > 2 else _FEW_STEPS
    noise = max(share * min(times[False]), *(max(t) - min(t) for t in times.values()))
    return Cost(extra, more if abs(more) > noise else 0.0)


def _step(run: Run) -> float | None:
    """Processor seconds from one backward's end to the next; of a single step, from the start to its end."""
    ends = [c["after"] for c in run.calls if "after" in c]
    if not run.ran or not ends:
        return None
    if len(ends) == 1:
        return float(ends[0])
    return float(min(b - a for a, b in itertools.pairwise(ends)))


def _signed(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB"):
        if abs(size) < 1024 or unit == "MB":
            return f"{size:+.0f} {unit}" if unit == "bytes" else f"{size:+.1f} {unit}"
        size /= 1024
    return f"{size:+.1f} GB"
