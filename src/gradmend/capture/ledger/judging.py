"""The verdict on a Save that backward asks for: unchanged, refused but right, or a conflict, and by what."""

from __future__ import annotations

import bisect
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from gradmend.capture.graph import nodes, reads
from gradmend.capture.hooks import backward_calls
from gradmend.capture.ledger import escapes
from gradmend.capture.ledger.composites import Pieces
from gradmend.capture.ledger.entries import Entry, Written
from gradmend.capture.ledger.scopes import Tallies
from gradmend.capture.memory.layouts import layout_of, overlap, physical
from gradmend.capture.memory.undo import same_bytes
from gradmend.capture.native.loading import compiled
from gradmend.capture.sites import Raw

if TYPE_CHECKING:
    from gradmend.capture.ledger.ledger import Ledger

Cause = Literal["write", "swap", "foreign", "unknown"]

_detach = torch._C.TensorBase.detach
_storage_of = torch._C.TensorBase.untyped_storage
_MOST_REPLAYED = 32


def counted(tallies: Tallies | None, entry: Entry, written: Written | None) -> bool:
    """Whether this Save and this Write, by their lines, were judged in full before: then only count them."""
    if not tallies or written is None or (tally := tallies.get((entry.raw, written.raw))) is None:
        return False
    tally[1] += 1
    tally[2] += written.kept
    return True


class Finding:
    """A Save that PyTorch would refuse, or that has changed: the facts, before any words.

    A loop may find thousands of the same kind, so what only a story needs is looked up when it is asked for.
    """

    def __init__(
        self,
        ledger: Ledger,
        entry: Entry,
        slot: str | None,
        *,
        changed: bool,
        read: bool,
        moved: bool,
        cause: Cause,
    ) -> None:
        self.entry = entry
        self.slot = slot
        self.changed = changed  # its bytes differ from what they were, or nobody can tell
        self.read = read  # the node's backward reads this slot
        self.moved = moved  # the version counter stepped: plain PyTorch would raise
        self.cause = cause
        self._ledger = ledger

    @property
    def harmful(self) -> bool:
        return self.changed and self.read

    @cached_property
    def node(self) -> Any:
        return nodes.current()

    @cached_property
    def backward(self) -> Raw:
        return backward_calls.where(1)

    @cached_property
    def first(self) -> Written | None:
        """The first Write to tell of, found fast."""
        if self.cause == "swap":
            return self.entry.swaps[0][0]
        timeline, entry = self.entry.timeline, self.entry
        if timeline is None or not timeline.log:
            return None
        if self.changed and entry.layout:
            record = timeline.undo.oldest_meeting(entry.layout, entry.tick)
            if record is not None:
                return record.written
        log = timeline.log
        at = bisect.bisect_right(log, entry.tick, key=lambda w: w.tick)
        return log[at] if at < len(log) else None

    @cached_property
    def writes(self) -> list[Written]:
        """The Writes to tell of: those that met the Save, else those PyTorch refuses it for. The one that first
        changed its value comes first."""
        entry = self.entry
        if self.cause == "swap":
            return [written for written, _ in entry.swaps]
        if entry.timeline is None:
            return []
        later = [w for w in entry.timeline.log if w.tick > entry.tick]
        if entry.layout is None:
            return later[:1]
        met = [w for w in later if overlap(w.layout, entry.layout)]
        if not met:
            return [w for w in later if w.moved]
        at = self._first_change(met) if self.changed and self.cause == "write" else 0
        return met[at:] + met[:at]

    def _first_change(self, met: list[Written]) -> int:
        entry = self.entry
        saved = self._ledger.value(entry) if len(met) > 1 else None
        if saved is None or _shrunk(entry):
            return 0
        for at, written in enumerate(met[:_MOST_REPLAYED]):
            after = self._ledger.value(entry, written.tick)
            if not same_bytes(physical(saved), physical(entry.handle if after is None else after)):
                return at
        return 0

    @property
    def kept(self) -> int:
        """Bytes that were kept for this Save."""
        return self.first.kept if self.first is not None and self.changed else 0


def judge(ledger: Ledger, entry: Entry, packed: object = None) -> torch.Tensor:
    """The value that backward shall have, or the exception that the policy raises."""
    handle = entry.handle
    scope = entry.scope
    if scope.plain:
        return _as_pytorch(entry)
    known = bool(scope.healed) and entry.print is None and not entry.uncredited()
    if known:
        record = ledger.exact(entry)
        if record is not None and counted(scope.healed, entry, record.written):
            return record.whole()  # one more of a kind that was judged in full before, and is healed
    value = ledger.value(entry)
    if value is not None and known:
        finding = Finding(ledger, entry, None, changed=True, read=True, moved=True, cause="write")
        if counted(scope.healed, entry, finding.first):
            return value
    gone = _shrunk(entry)
    changed = gone or (value is not None and not same_bytes(physical(value), physical(handle)))
    moved = (entry.moved() or (isinstance(packed, Pieces) and packed.stepped)) and not entry.unchecked
    cause: Cause = "write"
    if entry.uncredited() or (gone and value is None):
        cause, changed = "unknown", True
    elif entry.print is not None and entry.print != escapes.fingerprint(handle if value is None else value):
        cause, changed = "foreign", True
    if not (changed or moved or entry.swaps):
        return handle
    slot, read = None, True
    if changed or entry.swaps:
        node = nodes.current()
        if node is not None:
            slot = reads.slot_of(node, entry if packed is None else packed)
            read = reads.is_read(node, slot, handle.device.type)
        if not changed and entry.swaps and not _is_result(slot) and not _same_tensor(_under(entry), handle):
            cause, changed = "swap", True
        if not (
            moved or (changed and read)
        ):  # PyTorch refuses nothing here, and backward reads nothing changed
            return handle if value is None or not changed else value
    finding = Finding(ledger, entry, slot, changed=changed, read=read, moved=moved, cause=cause)
    if not (changed or entry.swaps) and counted(scope.spared, entry, finding.first):
        return handle
    error = scope.tell(finding)
    if error is not None:
        raise error
    return handle if value is None or not changed else value


def _as_pytorch(entry: Entry) -> torch.Tensor:
    """What PyTorch would hand to backward, and its own refusal where the counter moved."""
    original = entry.original() if entry.original else None
    if entry.moved() and not entry.unchecked:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{entry.handle.type()} {list(entry.handle.shape)}] is at version {entry.handle._version}; "
            f"expected version {entry.version} instead"
        )
    if entry.swaps:
        return entry.swaps[-1][1] if original is None else original.detach()
    return entry.handle


def _shrunk(entry: Entry) -> bool:
    """Its storage has become too small for it: reading it would leave the memory."""
    try:
        layout = entry.layout or layout_of(entry.handle)
        return _storage_of(entry.handle).nbytes() < layout.hi
    except RuntimeError:
        return False  # sparse, wrapped: no memory of its own


def _under(entry: Entry) -> torch.Tensor:
    """What lies under the saved tensor now: later swaps, perhaps back to what it was, met other memory."""
    original = entry.original() if entry.original else None
    return entry.swaps[-1][1] if original is None else original


def _is_result(slot: str | None) -> bool:
    # PyTorch keeps a node's own output as another tensor, so other memory under the original is no harm.
    return slot is not None and slot.startswith(("result", "output", "values", "indices"))


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and same_bytes(physical(_detach(a)), physical(b))


if compiled is not None:
    _Base: Any = torch._C.TensorBase  # the names on torch.Tensor may be tapped
    compiled.know_values(_Base.is_neg, _Base.is_conj, torch._C._has_torch_function_unary)
    compiled.know_scratch(
        torch.empty_like,
        _Base.data_ptr,
        getattr(_Base, "_use_count", None),  # without these nothing is used again
        getattr(torch._C, "_storage_Use_Count", None),
        _Base.is_inference,
    )
