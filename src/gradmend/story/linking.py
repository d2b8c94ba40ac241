"""From a Finding of the ledger to a Conflict: names, ops, formula, rule, and the lines to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from gradmend.capture.ledger import entries
from gradmend.capture.ledger.findings import Finding
from gradmend.capture.ledger.unguarded import Kept, Unguarded
from gradmend.capture.memory.layouts import Layout
from gradmend.capture.sites import resolve
from gradmend.model import Conflict, Culprit, Frame, Kind, Save, Site, TensorInfo, Write
from gradmend.rules.classify import classify
from gradmend.story import words
from gradmend.story.compiled_calls import placed
from gradmend.story.history import history
from gradmend.story.holders import holder, lies_in, shape_of
from gradmend.story.knowledge import Knowledge, by_node
from gradmend.story.names import argument_name, enclosing_loop, result_name, written_name
from gradmend.story.why import why
from gradmend.story.words import is_direct

_storage_of = torch._C.TensorBase.untyped_storage  # the name on torch.Tensor may be tapped
_MOST_WRITES = 8  # told in one conflict
_MOST_VIEWS = 2  # between a parameter and what is kept of it


def kind_of(finding: Finding) -> Kind:
    if not finding.harmful:
        return "refused-but-right"
    return "error" if finding.moved else "silent"


def versions_of(finding: Finding) -> tuple[int, int] | None:
    """At which version the saved tensor is and was, where PyTorch would refuse for that."""
    now, saved = finding.save.handle._version, finding.save.version
    return (now, saved) if finding.moved and now != saved else None


def link(finding: Finding) -> Conflict:
    """A mistake of ours in telling it neither stops a run that heals nor takes the place of the conflict."""
    try:
        return _explained(finding)
    except Exception as ours:
        return _bare(finding, ours)


def _bare(finding: Finding, ours: Exception) -> Conflict:
    entry, first = finding.save, finding.first
    written = resolve(first.raw).user if first is not None else None
    saved, backward = resolve(entry.raw).user, resolve(finding.backward).user
    at = written or saved
    return Conflict(
        rule="GM101" if first is not None else "GM110",
        kind=kind_of(finding),
        message=words.bare(written, saved, backward),
        culprits=(Culprit(at.file, at.line, first.op if first is not None else ""),)
        if at is not None
        else (),
        saved=Save(resolve(entry.raw), "", "", finding.slot, _info(entry.layout, None)),
        writes=()
        if first is None
        else (Write(resolve(first.raw), first.op, _info(first.layout, None), "data"),),
        backward=backward,
        versions=versions_of(finding),
        notes=(words.ours_failed(ours),),
    )


def _explained(finding: Finding) -> Conflict:
    entry = finding.save
    if isinstance(entry, Unguarded):
        from gradmend.story import silent

        told = silent.link_kept(finding) if isinstance(entry, Kept) else silent.link_read(finding)
        return with_history(told, finding)
    node = finding.node.name() if finding.node is not None else ""
    knowledge = by_node(node)
    name = _name_of_saved(entry, knowledge.op, finding.slot)
    written = [(w, _name_of_written(w, finding), _times(w, finding)) for w in _told(finding.writes)]
    key = _key(finding, node, name, written)
    conflict = _linked.get(key)
    if conflict is None:
        if len(_linked) >= _MOST_LINKED:
            _linked.clear()
        save = _save(finding, node, knowledge.op, name)
        conflict = _link(finding, knowledge, save, [_write(*w, finding) for w in written])
        conflict = _linked[key] = with_history(conflict, finding)
    return conflict


def with_history(conflict: Conflict, finding: Finding) -> Conflict:
    """The same with the history of its storage, for pictures; what can't be pictured is told all the same."""
    saved = conflict.saved.tensor.name if conflict.saved else None
    written = conflict.writes[0].tensor.name if conflict.writes else None
    try:
        return replace(conflict, history=history(finding, saved, written))
    except Exception:
        return conflict


# A heal() around each training step finds the same again and again.
_linked: dict[tuple[object, ...], Conflict] = {}
_MOST_LINKED = 256


def _key(
    finding: Finding, node: str, name: str | None, written: Sequence[tuple[entries.Write, str | None, int]]
) -> tuple[object, ...]:
    """All that a conflict is made of."""
    entry, f = finding.save, finding
    facts = f.cause, f.slot, f.changed, f.read, f.moved, f.kept, f.backward, name, node
    looks = entry.layout, shape_of(entry.handle), entry.handle.dtype, _size(entry)
    saved = entry.raw, entry.escape, entry.moved(), _is_leaf(finding), versions_of(finding)
    writes = tuple((w.raw, w.op, w.layout, w.how, w.moved, name, times) for w, name, times in written)
    left = (entry.scope.policy, entry.scope.left) if f.cause == "left" else None
    return facts, looks, saved, writes, left


def _link(finding: Finding, knowledge: Knowledge, save: Save, writes: Sequence[Write]) -> Conflict:
    entry = finding.save
    kind = kind_of(finding)
    backward = resolve(finding.backward).user
    if backward is not None and backward.owner == "torch":
        backward = None  # a dry run's: no line of the program called it
    first = writes[0] if writes else None
    rule = classify(
        kind=kind,
        quiet=not (entry.moved() or finding.moved),
        how={"foreign": "foreign", "unknown": "unknown", "left": "left"}.get(
            finding.cause, first.how if first else "unknown"
        ),
        write_op=first.op if first else "",
        write_stack=first.site.frames if first else (),
        save_op=knowledge.op,
        slot=finding.slot,
        saved_is_leaf=save.leaf,
        saved_is_output=finding.slot is not None and finding.slot in knowledge.results,
        same_region=bool(finding.writes) and _covers(finding.writes[0].layout, entry.layout),
        piecewise=save.view is not None or bool(first and loop_of(first.site.user)),
    )
    escape = resolve(entry.escape) if entry.escape else None
    culprits = _culprits(writes, finding, save, backward, escape)
    return Conflict(
        rule=rule,
        kind=kind,
        message=words.message(
            kind,
            finding.cause,
            save,
            first,
            backward,
            escape.user if escape else None,
            entry.scope.policy,
        ),
        culprits=culprits,
        saved=save,
        writes=tuple(writes),
        backward=backward,
        asked=resolve(finding.backward).users if backward is not None else (),
        healed_bytes=finding.kept if finding.harmful else 0,
        versions=versions_of(finding),
        why=why(knowledge, save),
        notes=words.notes(finding, save, writes, escape),
        help=words.after_left(entry.scope.policy) if finding.cause == "left" else words.helps(rule, kind),
    )


def _is_leaf(finding: Finding) -> bool:
    """Whether it is a parameter, or a view of one: a Linear keeps its weight transposed."""
    entry = finding.save
    original = entry.original() if entry.original else None
    if original is None:  # a view that is gone; the graph still leads through it to what it is of
        return _leads_to_leaf(finding.node, entry.handle, _MOST_VIEWS)
    base = original._base if original._is_view() and original._base is not None else original
    return base.is_leaf and base.requires_grad


def _leads_to_leaf(node: Any, handle: torch.Tensor, views: int) -> bool:
    for below, _ in getattr(node, "next_functions", ()):
        leaf = getattr(below, "variable", None)
        if leaf is not None:
            if lies_in(leaf, handle):
                return True
        elif views and _leads_to_leaf(below, handle, views - 1):
            return True
    return False


def _covers(written: Layout, saved: Layout | None) -> bool:
    return saved is not None and written.dense and written.lo <= saved.lo and saved.hi <= written.hi


def _told(writes: Sequence[entries.Write]) -> list[entries.Write]:
    """One Write for each line and op, the first of each; a loop's thousand repeats are counted elsewhere."""
    seen: dict[tuple[object, str], entries.Write] = {}
    for written in writes:
        seen.setdefault((written.raw, written.op), written)
        if len(seen) == _MOST_WRITES:
            break
    return list(seen.values())


def _info(layout: Layout | None, name: str | None) -> TensorInfo:
    if layout is None:
        return TensorInfo(name=name)
    return TensorInfo(layout.shape, str(layout.dtype).removeprefix("torch."), name)


def _name_of_saved(entry: entries.Save, op: str, slot: str | None) -> str | None:
    site = placed(resolve(entry.raw), op)
    # Below a library's line the source can only guess which argument went where: the program knows.
    if is_direct(site):
        return _saved_name(site, op, slot) or holder(entry.handle)
    return holder(entry.handle) or _saved_name(site, op, slot)


def _save(finding: Finding, node: str, op: str, name: str | None) -> Save:
    entry, handle = finding.save, finding.save.handle
    info = TensorInfo(shape_of(handle) or (), str(handle.dtype).removeprefix("torch."), name)
    return Save(placed(resolve(entry.raw), op), op, node, finding.slot, info, _view(entry), _is_leaf(finding))


def _saved_name(site: Site, op: str, slot: str | None) -> str | None:
    frame = site.user
    if frame is None or slot is None:
        return None
    if slot.startswith(("result", "output")):
        return result_name(frame)
    return argument_name(frame, slot, op)


def _size(entry: entries.Save) -> int:
    """Of its storage, in elements."""
    return _storage_of(entry.handle).nbytes() // entry.handle.element_size() if entry.timeline else 0


def _view(entry: entries.Save) -> str | None:
    """How the tensor lies in a larger storage, in words."""
    handle, total = entry.handle, _size(entry)
    if handle.numel() >= total:
        return None
    offset = int(handle.storage_offset())
    return f"{handle.numel()} of the {total} elements of its storage, from element {offset} on"


def _name_of_written(written: entries.Write, finding: Finding) -> str | None:
    site = placed(resolve(written.raw), written.op)
    name = written_name(site.user, written.op) if site.user else None
    return name if name and is_direct(site) else holder(finding.save.handle) or name


def _times(written: entries.Write, finding: Finding) -> int:
    return sum(1 for w in finding.writes if w.op == written.op and w.raw == written.raw)


def _write(written: entries.Write, name: str | None, times: int, finding: Finding) -> Write:
    how = "metadata" if written.how == "metadata" else "data"
    view = None
    saved = finding.save.layout
    if saved is not None and (written.layout.lo, written.layout.hi) != (saved.lo, saved.hi):
        item = written.layout.dtype.itemsize
        first, last = written.layout.lo // item, (written.layout.hi - 1) // item
        view = f"{f'element {first}' if first == last else f'elements {first} to {last}'} of the same storage"
    info = _info(written.layout, name)
    site = placed(resolve(written.raw), written.op)
    return Write(site, written.op, info, how, not written.moved, times, view)  # type: ignore[arg-type]


def write_of(written: entries.Write, finding: Finding) -> Write:
    return _write(written, _name_of_written(written, finding), _times(written, finding), finding)


def _culprits(
    writes: Sequence[Write], finding: Finding, save: Save, backward: Frame | None, escape: Site | None
) -> tuple[Culprit, ...]:
    found: dict[tuple[str, int], Culprit] = {}

    def add(frame: Frame | None, op: str) -> None:
        if frame is not None:
            found.setdefault((frame.file, frame.line), Culprit(frame.file, frame.line, op))

    if finding.cause == "foreign" and escape is not None:
        from gradmend.story.foreign import foreign_writes

        for frame in foreign_writes(escape):
            add(frame, "numpy")
        add(escape.user, "escape")
    if finding.cause == "left":
        from gradmend.story.left import writes_after

        for frame in writes_after(
            resolve(finding.save.scope.left or ()), backward, save.tensor.name, save.leaf
        ):
            add(frame, "left")
    for write in writes:
        add(write.site.user, write.op)
    at = save.site.user
    if not found and at is not None:
        from gradmend.story.compiled_calls import compiled_writes

        for frame, function in compiled_writes(at, save.tensor.name):
            add(frame, function)
    if not found:  # nobody saw the write: where it was saved and where it was missed bound the search
        add(save.site.user, save.op)
        add(backward, "backward")
    return tuple(found.values())


def loop_of(frame: Frame | None) -> int | None:
    return enclosing_loop(frame) if frame is not None else None
