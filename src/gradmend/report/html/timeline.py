"""The memory in a picture: a strip of its bytes, and a lane for each tensor in it, on one clock. No scripts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradmend.report.html.text import plain, spoken, tensor, where
from gradmend.story.words import counted

_MOST_LANES = 12
_PIXELS = 160  # places on the clock that are told apart; events that fall on one are one mark
_MOST_TOLD = 4  # lines named in a mark of many events
_WORDS = {"save": "saved", "write": "written", "read": "read by backward"}


@dataclass(frozen=True, slots=True)
class _Event:
    what: str
    tick: int
    lane: int
    place: str
    op: str
    ours: bool
    version: Any
    quiet: bool
    values: Any

    def told(self) -> str:
        words = _WORDS.get(self.what, self.what)
        parts = [f"{words}{f' by {spoken(self.op)}' if self.what == 'write' else ''}", self.place]
        if self.version is not None:
            parts.append(f"version {self.version}" + (", not moved" if self.quiet else ""))
        elif self.quiet:
            parts.append("version not moved")
        if self.values:
            parts.append(f"values {_number(self.values[0])} to {_number(self.values[1])}")
        return " · ".join(p for p in parts if p)


def timeline(history: Any) -> str:
    """The figure; empty where there is nothing to show. Takes what is in a Session's JSON, which may be damaged."""
    try:
        return _figure(history) if history else ""
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return ""


def _figure(history: dict[str, Any]) -> str:
    nbytes = int(history["nbytes"])
    lanes = [(int(lo), int(hi), info) for lo, hi, info in history["lanes"]]
    places = [where(os.path.basename(f), n, w) if f else "" for f, n, w in history["places"]]
    events = [
        _Event(str(w), int(t), int(n), places[p], str(op), bool(o), v, bool(q), r)
        for w, t, n, p, op, o, v, q, r in history["events"]
    ]
    if not events or not lanes or nbytes <= 0:
        return ""
    events.sort(key=lambda e: e.tick)
    when = {id(e): i / max(1, len(events) - 1) for i, e in enumerate(events)}
    shown = _lanes(events, len(lanes))
    rows = "".join(
        _lane(lanes[n], nbytes, [e for e in events if e.lane == n], when, history.get("changed") or [])
        for n in shown
    )
    rest = len(lanes) - len(shown)
    left = int(history.get("left_out") or 0)
    notes = [f"and {counted(rest, 'more view')} of the same storage"] * bool(rest)
    notes += [f"{counted(left, 'event')} in between left out"] * bool(left)
    more = f'<p class="facts">{plain("; ".join(notes))}</p>' if notes else ""
    return (
        '<figure class="clock"><figcaption>What happened to the memory'
        f" <small>{plain(counted(nbytes, 'byte'))}, {plain(counted(len(events), 'event'))}, time runs to the right</small>"
        "</figcaption>"
        '<p class="legend"><span class="save">saved</span><span class="write">written</span>'
        '<span class="read">read by backward</span><span class="changed">bytes that changed</span></p>'
        f"{rows}{more}{_chain(history.get('views'))}</figure>"
    )


def _lanes(events: Sequence[_Event], total: int) -> list[int]:
    """Those of the conflict first, then those with most events, in the order of their first event."""
    weight = [0] * total
    first: dict[int, int] = {}
    for i, event in enumerate(events):
        weight[event.lane] += 1_000_000 if event.ours else 1
        first.setdefault(event.lane, i)
    best = sorted((n for n in range(total) if weight[n]), key=lambda n: -weight[n])[:_MOST_LANES]
    return sorted(best, key=lambda n: first[n])


def _lane(
    lane: tuple[int, int, Any], nbytes: int, events: list[_Event], when: dict[int, float], changed: Any
) -> str:
    lo, hi, info = lane
    marks: dict[tuple[int, str, bool], list[_Event]] = {}
    for event in events:
        at = round(when[id(event)] * _PIXELS)
        marks.setdefault((at, event.what, event.ours), []).append(event)
    dots = "".join(_mark(at / _PIXELS, what, ours, some) for (at, what, ours), some in sorted(marks.items()))
    parts = [_part("held", lo, hi, nbytes)]
    parts += [_part("changed", max(lo, a), min(hi, b), nbytes) for a, b in changed if a < hi and lo < b]
    bytes_ = f"bytes {lo:,} to {hi:,}" if (lo, hi) != (0, nbytes) else "all bytes"
    return (
        f'<div class="lane"><p><code>{plain(tensor(info))}</code> <small>{plain(bytes_)}</small></p>'
        f'<div class="strip" aria-hidden="true">{"".join(parts)}</div>'
        f'<div class="track">{dots}</div></div>'
    )


def _part(kind: str, lo: int, hi: int, nbytes: int) -> str:
    left, width = 100 * lo / nbytes, 100 * max(0, hi - lo) / nbytes
    return f'<span class="{kind}" style="left:{left:.3f}%;width:max(2px,{width:.3f}%)"></span>'


def _mark(at: float, what: str, ours: bool, events: list[_Event]) -> str:
    kind = what if what in _WORDS else "look"
    told = list(dict.fromkeys(e.told() for e in events))
    lines = told[:_MOST_TOLD]
    if len(events) > 1:
        lines.insert(0, counted(len(events), "event"))
    if len(told) > _MOST_TOLD:
        lines.append("...")
    tip = "<br>".join(plain(line) for line in lines)
    return (
        f'<span class="dot {kind}{"" if ours else " other"}" style="--at:{at:.4f}" tabindex="0" role="img" '
        f'aria-label="{plain("; ".join(lines))}"><span class="tip" aria-hidden="true">{tip}</span></span>'
    )


def _chain(views: Any) -> str:
    if not views:
        return ""
    steps = "".join(f"<li>{plain(v)}</li>" for v in views)
    return f'<p class="sub">How the saved tensor lies in it</p><ol class="chain">{steps}</ol>'


def _number(value: Any) -> str:
    return f"{float(value):.4g}"
