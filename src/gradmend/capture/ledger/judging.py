"""The verdict on a Save that backward asks for: unchanged, refused but right, or a conflict, and by what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradmend.capture.graph import nodes, reads
from gradmend.capture.ledger import escapes
from gradmend.capture.ledger.composites import Pieces
from gradmend.capture.ledger.entries import Save, Write
from gradmend.capture.ledger.findings import Cause, Finding, shrunk
from gradmend.capture.ledger.scopes import Tallies, Tally
from gradmend.capture.memory.layouts import has_values, physical
from gradmend.capture.memory.undo import same_bytes
from gradmend.capture.sites import Raw
from gradmend.errors import DETACHED

try:
    import cython
except ImportError:
    from gradmend.capture.native import uncompiled as cython

if TYPE_CHECKING:
    from gradmend.capture.ledger.ledger import Ledger

_detach = torch._C.TensorBase.detach


@cython.cclass
class _Last:
    """The tally that was asked for last."""

    __slots__ = ("saved", "tallies", "tally", "wrote")

    def __init__(self) -> None:
        self.tallies: Tallies | None = None
        self.saved: Raw | None = None
        self.wrote: Raw | None = None
        self.tally: Tally = []


_last = _Last()


def counted(tallies: Tallies | None, save: Save, write: Write | None) -> bool:
    """Whether this Save and this Write, by their lines, were judged in full before: then only count them."""
    if not tallies or write is None:
        return False
    if _last.tallies is tallies and _last.saved is save.raw and _last.wrote is write.raw:
        tally = _last.tally  # a loop comes by the same two lines again and again
    else:
        found = tallies.get((save.raw, write.raw))
        if found is None:
            return False
        tally = found
        _last.tallies, _last.saved, _last.wrote, _last.tally = tallies, save.raw, write.raw, tally
    tally[1] += 1
    if not write.counted:
        tally[2] += write.kept
        write.counted = True
    return True


def judge(ledger: Ledger, save: Save, packed: object = None) -> torch.Tensor:
    """The value that backward shall have, or the exception that the policy raises."""
    scope = save.scope
    if scope.plain or save.print == escapes.FREED:  # when it was saved, there was no value to compare with
        return _as_pytorch(save)
    timeline = save.timeline
    known = bool(scope.healed) and save.print is None and not save.uncredited()
    if known and timeline is not None:
        record = timeline.exact(save)
        if record is not None and counted(scope.healed, save, record.write):
            # One more of a kind that was judged in full before, and is healed.
            known_bytes = type(record.old) is bytes
            return record.whole(save.handle) if known_bytes or has_values(save.handle) else save.handle
    value = _judged(ledger, save, packed, known)
    return value if has_values(save.handle) else save.handle  # a dry run has no old values, and needs none


def _judged(ledger: Ledger, save: Save, packed: object, known: bool) -> torch.Tensor:
    handle, scope = save.handle, save.scope
    value = ledger.value(save)
    if value is not None and known:
        finding = Finding(ledger, save, None, changed=True, read=True, moved=True, cause="write")
        if counted(scope.healed, save, finding.first):
            return value
    gone = shrunk(save)
    changed = gone or (value is not None and not same_bytes(physical(value), physical(handle)))
    moved = (save.moved() or (isinstance(packed, Pieces) and packed.stepped)) and not save.unchecked
    moved = moved or save.detached
    cause: Cause = "write"
    if save.uncredited() or (gone and value is None):
        cause, changed = "left" if _since_left(save) else "unknown", True
    elif save.print is not None and save.print != escapes.fingerprint(handle if value is None else value):
        cause, changed = "left" if _since_left(save) and save.escape is None else "foreign", True
    if not (changed or moved or save.swaps):
        return handle
    slot, read = None, True
    if changed or save.swaps:
        node = nodes.current()
        if node is not None:
            slot = reads.slot_of(node, save if packed is None else packed)
            read = reads.is_read(node, slot, handle.device.type)
            if isinstance(packed, Pieces) and packed.are_values(save) and reads.reads_places_only(node, slot):
                read = False
        if not changed and save.swaps and not _is_result(slot) and not _same_tensor(_under(save), handle):
            cause, changed = "swap", True
        if not (
            moved or (changed and read)
        ):  # PyTorch refuses nothing here, and backward reads nothing changed
            return handle if value is None or not changed else value
    finding = Finding(ledger, save, slot, changed=changed, read=read, moved=moved, cause=cause)
    if not (changed or save.swaps) and counted(scope.spared, save, finding.first):
        return handle
    error = scope.tell(finding)
    finding.told()
    if error is not None:
        raise error
    return handle if value is None or not changed else value


def _since_left(save: Save) -> bool:
    """Whether it stood as it was when its scope was left: whatever changed it came after that."""
    return save.scope.left is not None and save.print is not None and save.print != escapes.CHANGED


def _as_pytorch(save: Save) -> torch.Tensor:
    """What PyTorch would hand to backward, and its own refusal where the counter moved."""
    original = save.original() if save.original else None
    if save.detached:
        raise RuntimeError(DETACHED)
    if save.moved() and not save.unchecked:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{save.handle.type()} {list(save.handle.shape)}] is at version {save.handle._version}; "
            f"expected version {save.version} instead"
        )
    if save.swaps:
        return save.swaps[-1][1] if original is None else original.detach()
    return save.handle


def _under(save: Save) -> torch.Tensor:
    """What lies under the saved tensor now: later swaps, perhaps back to what it was, met other memory."""
    original = save.original() if save.original else None
    return save.swaps[-1][1] if original is None else original


def _is_result(slot: str | None) -> bool:
    # PyTorch keeps a node's own output as another tensor, so other memory under the original is no harm.
    return slot is not None and slot.startswith(("result", "output", "values", "indices"))


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and same_bytes(physical(_detach(a)), physical(b))
