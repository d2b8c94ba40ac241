"""From a Finding to the History of its storage: Saves, Writes and the read on one clock, for the picture of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import torch

from gradmend.capture.edits.arrivals import site_of
from gradmend.capture.graph import nodes
from gradmend.capture.graph.incoming import senders
from gradmend.capture.ledger.entries import Save, Write
from gradmend.capture.ledger.findings import Finding
from gradmend.capture.ledger.ledger import Ledger
from gradmend.capture.memory.layouts import PLAIN, Layout, layout_of, physical
from gradmend.capture.sites import Raw, resolve
from gradmend.model import Event, History, Lane, Node, TensorInfo

_Base: Any = torch._C.TensorBase  # the names on torch.Tensor may be tapped
_MOST_EVENTS = 10_000
_MOST_VALUED = 24  # Writes after which the saved value is looked at
_MOST_ELEMENTS = 1 << 22  # of a tensor whose values are looked at
_STRIP = 256  # pieces in which the bytes are told apart
_MOST_NODES = 2000  # looked at for those that send the failing one its gradient
_NEAR = 8  # nodes of one level that are shown


def history(finding: Finding, saved: str | None, written: str | None) -> History | None:
    """What is known of the storage; None where the tensor has no memory of its own."""
    entry, ledger = finding.save, finding.ledger
    try:
        layout = entry.layout or layout_of(entry.handle)
        nbytes = int(_Base.untyped_storage(entry.handle).nbytes())
    except RuntimeError:  # sparse, wrapped
        return None
    with torch.no_grad():
        book = _Book()
        others, log = _of_storage(entry)
        met = {id(w) for w in finding.writes}
        first = finding.writes[0].raw if finding.writes else None
        now = ledger.tick()
        versions = _versions(entry, log)
        values = _values(ledger, entry, [w for w in log if id(w) in met])
        own = book.lane(layout, saved)
        add = book.events.append
        for one in others:
            if one is not entry and one.layout is not None:
                add(Event("save", one.tick, book.lane(one.layout), book.place(one.raw), ""))
        at = book.place(entry.raw)
        add(Event("save", entry.tick, own, at, "", True, entry.version, False, values.get(0)))
        for w in log:
            mine = id(w) in met
            lane = book.lane(w.layout, written if mine and w.raw == first else None)
            at, version, held = book.place(w.raw), versions.get(w.tick), values.get(w.tick)
            add(Event("write", w.tick, lane, at, w.op, mine, version, not w.moved, held))
        at, version = book.place(finding.backward), int(entry.handle._version)
        add(Event("read", now, own, at, "backward", True, version, False, _range(entry.handle)))
        return History(
            nbytes=nbytes,
            lanes=book.lanes(),
            events=book.chosen(),
            places=tuple(book.places),
            changed=_changed(ledger, entry, layout, nbytes),
            left_out=max(0, len(book.events) - _MOST_EVENTS),
            views=_views(entry, layout, nbytes, saved),
            graph=_around(finding.node, book),
        )


class _Book:
    """Lanes and places, each once."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int, str]] = []
        self.events: list[Event] = []
        self._lanes: dict[Layout, int] = {}
        self._names: dict[int, str] = {}
        self._places: dict[Raw, int] = {}

    def lane(self, layout: Layout, name: str | None = None) -> int:
        at = self._lanes.setdefault(layout, len(self._lanes))
        if name:
            self._names.setdefault(at, name)
        return at

    def lanes(self) -> tuple[Lane, ...]:
        kinds: dict[torch.dtype, str] = {}
        made = []
        for layout, at in self._lanes.items():
            dtype = layout.dtype
            kind = kinds.get(dtype) or kinds.setdefault(dtype, str(dtype).removeprefix("torch."))
            info = TensorInfo(tuple(layout.shape), kind, self._names.get(at))
            made.append(Lane(layout.lo, layout.hi, info))
        return tuple(made)

    def place(self, raw: Raw) -> int:
        at = self._places.get(raw)
        if at is None:
            frame = resolve(raw).user
            place = (frame.file, frame.line, frame.function) if frame else ("", 0, "")
            if place in self.places:
                at = self.places.index(place)
            else:
                at = len(self.places)
                self.places.append(place)
            self._places[raw] = at
        return at

    def chosen(self) -> tuple[Event, ...]:
        """In the order of time; of too many, those of this conflict and the others by halves from both ends."""
        events = sorted(self.events, key=itemgetter(1))  # their ticks
        if len(events) > _MOST_EVENTS:
            half = _MOST_EVENTS // 2
            events = events[:half] + events[-half:]
        return tuple(events)


def _of_storage(entry: Save) -> tuple[Sequence[Save], Sequence[Write]]:
    if entry.timeline is None:
        return (), [written for written, _ in entry.swaps]
    log = list(entry.timeline.log)
    known = {id(w) for w in log}
    return entry.timeline.saves(), log + [w for w, _ in entry.swaps if id(w) not in known]


def _versions(entry: Save, log: Iterable[Write]) -> dict[int, int]:
    """PyTorch's counter after each Write, where one step for each explains all of them."""
    moved = sorted(w.tick for w in log if w.tick > entry.tick and w.moved)
    if int(entry.handle._version) - entry.version != len(moved):
        return {}
    return {tick: entry.version + n for n, tick in enumerate(moved, 1)}


def _values(ledger: Ledger, entry: Save, met: Sequence[Write]) -> dict[int, tuple[float, float] | None]:
    """The range of the saved region at the Save (0) and after the first Writes that met it."""
    if not _readable(entry.handle):
        return {}
    first = ledger.value(entry)
    found = {0: _range(entry.handle if first is None else first)}
    for written in sorted(met, key=lambda w: w.tick)[:_MOST_VALUED]:
        after = ledger.value(entry, written.tick)
        found[written.tick] = _range(entry.handle if after is None else after)
    return found


def _readable(t: torch.Tensor) -> bool:
    return (
        type(t) in PLAIN
        and t.device.type not in ("meta", "vulkan")
        and t.layout is torch.strided
        and 0 < t.numel() <= _MOST_ELEMENTS
    )


def _range(t: torch.Tensor) -> tuple[float, float] | None:
    if not _readable(t):
        return None
    try:
        low, high = _Base.aminmax(_Base.detach(t))
        return float(low), float(high)
    except (RuntimeError, TypeError):  # complex; a storage that has become too small
        return None


def _changed(ledger: Ledger, entry: Save, layout: Layout, nbytes: int) -> tuple[tuple[int, int], ...]:
    """Runs of bytes that differ from what was saved, to one part in so many of the storage."""
    handle = entry.handle
    saved = ledger.value(entry)
    if saved is None or not nbytes or not _readable(handle) or saved.shape != handle.shape:
        return ()
    try:
        differs = physical(saved) != physical(handle)
        differs &= ~((saved != saved) & (handle != handle))  # NaN is no change of NaN
        where = _offsets(layout)[differs.reshape(-1)]
    except (RuntimeError, NotImplementedError):
        return ()
    item = layout.dtype.itemsize
    piece = max(item, -(-nbytes // _STRIP))
    runs: list[tuple[int, int]] = []
    for at in torch.unique(where * item // piece).tolist():
        lo, hi = at * piece, min(nbytes, (at + 1) * piece)
        if runs and runs[-1][1] == lo:
            runs[-1] = (runs[-1][0], hi)
        else:
            runs.append((lo, hi))
    return tuple(runs)


def _offsets(layout: Layout) -> torch.Tensor:
    """Of each element, in elements of the storage."""
    out = torch.full((), layout.offset, dtype=torch.int64)
    for size, stride in zip(layout.shape, layout.strides, strict=True):
        out = out.unsqueeze(-1) + torch.arange(size) * stride
    return out.reshape(-1)


def _views(entry: Save, layout: Layout, nbytes: int, name: str | None) -> tuple[str, ...]:
    """From the tensor that owns the memory to what was saved of it."""
    item = layout.dtype.itemsize
    if (layout.lo, layout.hi) == (0, nbytes) and layout.dense and len(layout.shape) < 2:
        return ()
    original = entry.original() if entry.original else None
    base = original._base if original is not None and type(original) in PLAIN else None
    owner = (
        f"storage: {nbytes // item} elements of {str(layout.dtype).removeprefix('torch.')}"
        if base is None
        else f"base: {str(base.dtype).removeprefix('torch.')}{list(base.shape)}"
    )
    steps = [owner]
    steps += _view_ops(original)
    shape, strides = list(layout.shape), list(layout.strides)
    steps.append(f"{name or 'saved'}: shape {shape}, strides {strides}, from element {layout.offset}")
    return tuple(steps) if len(steps) > 2 or base is not None or layout.lo or layout.hi != nbytes else ()


_VIEWS = (
    "Select", "Slice", "View", "T", "Transpose", "Permute", "Unsqueeze", "Squeeze", "Narrow", "AsStrided", "Diagonal",
    "Expand", "Unfold", "Split", "Unbind", "Chunk", "Alias", "Detach", "Reshape", "UnsafeView", "Movedim", "SwapDims",
)  # fmt: skip


def _view_ops(tensor: torch.Tensor | None) -> list[str]:
    """The views between base and tensor, as its graph has them."""
    found: list[str] = []
    node = tensor.grad_fn if tensor is not None and tensor._is_view() else None
    while node is not None and len(found) < 8:
        name = nodes.known(node).name().split("Backward")[0]
        if name not in _VIEWS:
            break
        found.append(name.lower())
        node = next((n for n, _ in nodes.edges(node) if n is not None), None)
    return found[::-1]


def _around(node: Any, book: _Book) -> tuple[Node, ...]:
    """The failing node, those that sent it its gradient, and two steps of those it passes one on to."""
    if node is None:
        return ()

    def told(one: Any, level: int) -> Node:
        raw = site_of(one)
        return Node(one.name(), level, book.place(raw) if raw else None)

    found = [*(told(n, -1) for n in senders(node, _MOST_NODES)[:_NEAR]), told(node, 0)]
    level = [node]
    for depth in (1, 2):
        level = list(dict.fromkeys(n for one in level for n, _ in nodes.edges(one) if n is not None))[:_NEAR]
        found += [told(n, depth) for n in level]
    return tuple(found)
