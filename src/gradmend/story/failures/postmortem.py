"""After PyTorch's version mismatch: which recorded Write stepped the counter of the tensor it complains of.

The graph is still there, and nothing in it is unpacked: each node's saved tensors are looked at as they were
packed. The message has the tensor's shape, dtype and both versions; the ring has, for each Write, the bytes it
touched and the version it left. A storage and a version name a Write for certain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any, Literal, Protocol

import torch

from gradmend.capture.memory.layouts import Layout, layout_of, overlap, span
from gradmend.capture.sites import Raw, resolve
from gradmend.model import Conflict, Culprit, Frame, Kind, Save, Site, TensorInfo, Write
from gradmend.rules.classify import classify
from gradmend.story.failures import nodes
from gradmend.story.failures.used_up import anomaly_site
from gradmend.story.failures.versions import Mismatch, bare, knowledge_of, read
from gradmend.story.holders import holder
from gradmend.story.names import enclosing_loop, result_name, written_name
from gradmend.story.why import why
from gradmend.story.words import asker, helps, message
from gradmend.story.words import at as at_line

_MOST_WRITES = 8


class Record(Protocol):
    """A Write as the flight recorder keeps it."""

    @property
    def lo(self) -> int: ...  # the address of its first byte
    @property
    def hi(self) -> int: ...  # and one past its last
    @property
    def op(self) -> str: ...
    @property
    def raw(self) -> Raw: ...
    @property
    def version(self) -> int: ...  # of the written tensor, after the Write
    @property
    def tick(self) -> int: ...
    @property
    def thread(self) -> int: ...
    @property
    def number(self) -> int: ...  # of the next node that the thread made
    @property
    def grid(self) -> Layout | None: ...  # where in between, for a strided view


class Ring(Protocol):
    """The flight recorder."""

    def writes(self, wanted: Callable[[int, int, int], bool]) -> Sequence[Record]:
        """Those whose address, size and version are wanted, the oldest first."""
        ...


@dataclass(frozen=True)
class Kept:
    """A saved tensor that fits the message."""

    node: Any
    slot: str
    tensor: torch.Tensor
    is_output: bool


How = Literal["address", "size", "none"]


def postmortem(
    exc: BaseException, roots: Sequence[Any], ring: Ring, at: Site | None = None
) -> Conflict | None:
    """The story of a version mismatch, or None where the exception is no such thing. `at`: the backward call."""
    mismatch = read(str(exc))
    if mismatch is None:
        return None
    kept = find(mismatch, roots)
    near = _near(kept, ring)
    by_address = [(k, w) for k in kept if (w := _by_address(mismatch, k, near))]
    if by_address:
        # Of the saves that fit, backward met the newest node first, and that one raised.
        save, writes = max(by_address, key=lambda pair: nodes.sequence(pair[0].node))
        return _tell(mismatch, save, writes, "address", at, near)
    writes = [] if kept else _by_size(mismatch, ring)
    return _tell(mismatch, kept[0] if kept else None, writes, "size" if writes else "none", at)


def find(mismatch: Mismatch, roots: Sequence[Any]) -> list[Kept]:
    """The saved tensors of this shape, dtype and version, newest node first; by the message's node where it fits."""
    found = []
    for node in nodes.walk(roots):
        for slot, tensor in nodes.saved(node):
            if not isinstance(tensor, torch.Tensor) or not _fits(mismatch, tensor):
                continue
            # An op's own output is packed without its grad_fn, which is the node itself.
            known = knowledge_of(str(node.name()))
            is_output = known is not None and slot in known.results
            found.append(Kept(node, slot, tensor, is_output))
    named = [k for k in found if _maker(k) == mismatch.node]
    return sorted(named or found, key=lambda k: -nodes.sequence(k.node))


def _fits(mismatch: Mismatch, tensor: torch.Tensor) -> bool:
    if tuple(tensor.shape) != mismatch.shape or tensor.is_inference():
        return False
    dtype = str(tensor.dtype).removeprefix("torch.")
    return tensor._version == mismatch.version and mismatch.dtype in ("", dtype)


def _maker(kept: Kept) -> str:
    if kept.is_output or (kept.slot == "tensors" and kept.tensor.grad_fn is None):
        return bare(str(kept.node.name()))
    grad_fn = kept.tensor.grad_fn
    return bare(str(grad_fn.name())) if grad_fn is not None else ""


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of its storage."""
    try:
        storage = tensor.untyped_storage()
        lo = storage.data_ptr()
        return lo, lo + storage.nbytes()
    except RuntimeError:  # sparse and other tensors without a storage
        return 0, 0


def _near(kept: Sequence[Kept], ring: Ring) -> Sequence[Record]:
    """The Writes to storages of these."""
    spans = sorted({_span(k.tensor) for k in kept})
    starts = [lo for lo, _ in spans]

    def wanted(lo: int, size: int, version: int) -> bool:
        at = bisect_right(starts, lo)
        return at > 0 and lo < spans[at - 1][1]

    return ring.writes(wanted) if kept else ()


def _by_address(mismatch: Mismatch, kept: Kept, near: Sequence[Record]) -> list[Record]:
    """The Writes to this storage that took its counter from the expected version to the one found."""
    lo, hi = _span(kept.tensor)
    thread, number = get_ident(), nodes.sequence(kept.node)
    steps: list[Record] = []
    for record in reversed(near):
        if not lo <= record.lo < hi:
            continue
        if record.thread == thread and record.number <= number:
            continue  # before the tensor was kept: an earlier life of this memory
        if steps and record.version >= steps[-1].version:
            break  # an earlier life of this memory
        if mismatch.expected < record.version <= mismatch.version:
            steps.append(record)
    return steps[::-1]  # the step away from the expected version first


def _by_size(mismatch: Mismatch, ring: Ring) -> list[Record]:
    """No node shows a tensor that fits: Writes of at least its size that left the version found."""
    item = getattr(torch, mismatch.dtype).itemsize if mismatch.dtype else 1
    size = item
    for extent in mismatch.shape:
        size *= extent
    fitting = ring.writes(lambda lo, extent, version: version == mismatch.version and extent >= size)
    return list(fitting[-1:])


def _tell(
    mismatch: Mismatch,
    kept: Kept | None,
    records: Sequence[Record],
    how: How,
    at: Site | None,
    near: Sequence[Record] = (),
) -> Conflict:
    save = _save(mismatch, kept)
    met = [r for r in records if _meets(kept, r)] if how == "address" else records
    # Every step of the counter is accounted for, and neither they nor a Write that no counter saw met the tensor.
    apart = (
        not met
        and len({r.version for r in records}) == mismatch.version - mismatch.expected
        and not any(_meets(kept, r) for r in near if r.tick > records[0].tick)
    )
    records = met or records
    writes = _writes(records, mismatch, holder(kept.tensor) if kept else None)
    backward = at.user if at else None
    first = writes[0] if writes else None
    known = knowledge_of(save.node) if save.node else None
    same = bool(records) and _same_bytes(kept, records[0])
    kind: Kind = "refused-but-right" if apart else "error"
    rule = classify(
        kind=kind,
        quiet=False,
        how="data" if first else "unknown",
        write_op=first.op if first else "",
        write_stack=first.site.frames if first else (),
        save_op=save.op,
        slot=save.slot,
        saved_is_leaf=kept is not None and kept.tensor.is_leaf and kept.tensor.requires_grad,
        saved_is_output=kept is not None and kept.is_output,
        same_region=same,
        piecewise=bool(
            (kept and _is_part(kept.tensor))
            or (first and first.site.user and enclosing_loop(first.site.user))
        ),
    )
    return Conflict(
        rule=rule,
        kind=kind,
        message=_message(_named(save, first, same), kept, first, backward, kind),
        culprits=tuple(
            dict.fromkeys(Culprit(f.file, f.line, w.op) for w in writes if (f := w.site.user) is not None)
        ),
        saved=save,
        writes=writes,
        backward=backward,
        asked=at.users if at else (),
        why=why(known, save) if known and save.slot else "",
        notes=_notes(mismatch, kept, how),
        help=helps(rule, kind),
    )


def _save(mismatch: Mismatch, kept: Kept | None) -> Save:
    info = TensorInfo(mismatch.shape, mismatch.dtype)
    if kept is None:
        return Save(Site(), "", "", None, info)
    site = anomaly_site(kept.node) or Site()
    name = result_name(site.user) if kept.is_output and site.user else None
    name = name or holder(kept.tensor)
    info = TensorInfo(mismatch.shape, mismatch.dtype, name)
    return Save(site, nodes.op_of(kept.node), str(kept.node.name()), kept.slot, info)


def _writes(records: Sequence[Record], mismatch: Mismatch, held: str | None) -> tuple[Write, ...]:
    told: dict[tuple[Frame | None, str], Write] = {}
    for record in records:
        site = resolve(record.raw)
        frame = site.user
        times = sum(1 for r in records if r.op == record.op and resolve(r.raw).user == frame)
        name = (written_name(frame, record.op) if frame else None) or held
        write = Write(site, record.op, TensorInfo(mismatch.shape, mismatch.dtype, name), times=times)
        told.setdefault((frame, record.op), write)
    return tuple(told.values())[:_MOST_WRITES]


def _meets(kept: Kept | None, record: Record) -> bool:
    """Whether the Write touched an element of the kept tensor itself, and not only of its storage."""
    if kept is None:
        return True
    start = kept.tensor.data_ptr()
    mine = layout_of(kept.tensor)
    mine = mine.shifted(start - mine.lo)
    if record.grid is None:
        return overlap(mine, span(record.lo, record.hi))
    return overlap(mine, record.grid.shifted(record.lo - record.grid.lo))


def _same_bytes(kept: Kept | None, record: Record) -> bool:
    if kept is None:
        return False
    lo = kept.tensor.data_ptr()
    return (record.lo, record.hi) == (lo, lo + kept.tensor.nbytes)


def _is_part(tensor: torch.Tensor) -> bool:
    try:
        return tensor.nbytes < tensor.untyped_storage().nbytes()
    except RuntimeError:
        return False


def _named(save: Save, write: Write | None, same: bool) -> Save:
    """What was written is what was kept: it goes by the name that the writing line has for it."""
    if save.tensor.name or write is None or not same:
        return save
    return replace(save, tensor=replace(save.tensor, name=write.tensor.name))


def _message(save: Save, kept: Kept | None, write: Write | None, backward: Frame | None, kind: Kind) -> str:
    cause = "write" if write is not None else "unknown"
    if kept is None and write is not None:
        line, asks = at_line(write.site.user, backward), asker(backward, backward)
        return f"{line} changes a {save.tensor} in place, but {asks} still needs one that an op kept"
    return message(kind, cause, save, write, backward, None)


def _notes(mismatch: Mismatch, kept: Kept | None, how: How) -> tuple[str, ...]:
    versions = f"version {mismatch.version}, expected {mismatch.expected}"
    if how == "address":
        return (f"found by the address and the versions of the kept tensor ({versions})",)
    if how == "size":
        return (
            f"found by size and version alone ({versions}): the node that kept the tensor does not show it, so another "
            "tensor's write may be meant",
            "run it under gradmend.watch() to be sure",
        )
    seen = "the kept tensor was found, but" if kept is not None else "no node shows the kept tensor, and"
    return (
        f"{seen} no recorded write fits ({versions}): it was made before install(), by compiled code, or too long ago",
        "run it under gradmend.watch() to find it",
    )
