"""What a Write leaves in the undo log: the old bytes that a live Save needs, in the cheapest way that covers them."""

from __future__ import annotations

import torch

from gradmend.capture.ledger.entries import Timeline, Write
from gradmend.capture.memory.layouts import PLAIN, Layout, physical, span
from gradmend.capture.memory.undo import Elements, take
from gradmend.capture.unseen import without_grad

_FEW_BYTES = 1 << 14  # for these no view is needed
_detach = torch._C.TensorBase.detach
_storage_of = torch._C.TensorBase.untyped_storage


def keep(
    timeline: Timeline, t: torch.Tensor, write: Write, elements: Elements | None, aliased: bool, whole: bool
) -> bool:
    """Whether anything had to be kept. `aliased`: the op itself may save what it overwrites. `whole`: all of `t` is written."""
    layout, undo, index = write.layout, timeline.undo, timeline.index
    if layout not in index and not aliased:
        if layout.lo >= index.hi or layout.hi <= index.lo:
            return False
        return _keep_met(timeline, t, write, elements)
    # The commonest by far: a Save of just what is being overwritten.
    if not aliased and undo.hides(layout, timeline.newest):
        return False
    view = None
    if whole and layout.hi - layout.lo > _FEW_BYTES and type(t) in PLAIN and not t.is_nested:
        view = physical(_detach(t))
    record = take(t, _storage_of(t), write, layout, elements, view)
    undo.add(record)
    write.kept = record.nbytes
    return True


def _keep_met(timeline: Timeline, t: torch.Tensor, write: Write, elements: Elements | None) -> bool:
    layout, undo = write.layout, timeline.undo
    met: list[Layout] = []
    total, lo, hi = 0, layout.hi, layout.lo
    for other in timeline.index.meeting(layout):
        met.append(other)
        total += other.nbytes
        lo, hi = max(min(lo, other.lo), layout.lo), min(max(hi, other.hi), layout.hi)
        if elements is not None or (total >= layout.nbytes and (lo, hi) == (layout.lo, layout.hi)):
            break
    if not met:
        return False
    if elements is not None or min(total, hi - lo if layout.dense else total) >= layout.nbytes:
        regions = [layout]
    elif layout.dense and hi - lo <= total:
        regions = [span(lo, hi)]
    else:
        regions = met
    # A numpy round trip lies over the same bytes in a storage of its own.
    storage = _storage_of(t)
    if storage._cdata != timeline.key:
        storage = _storage_of(timeline.saves()[0].handle)
    grown = undo.nbytes
    for region in regions:
        if not undo.hides(region, timeline.newest):
            undo.add(without_grad(take, t, storage, write, region, elements))
    write.kept = undo.nbytes - grown
    return True
