"""From a silent wrong that no saved-tensor hook sees to a Conflict: ctx attributes, live edits, hooks, checkpoints."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradmend.capture.ledger import entries
from gradmend.capture.ledger.findings import Finding, SilentFinding
from gradmend.capture.ledger.unguarded import Kept, Read
from gradmend.capture.sites import resolve
from gradmend.model import Conflict, Culprit, Frame, Save, Site, TensorInfo, Write
from gradmend.story import silent_words as words
from gradmend.story.foreign import foreign_writes, suspects
from gradmend.story.linking import _culprits, _told, write_of
from gradmend.story.names import written_name
from gradmend.story.source import parse


def link_kept(finding: Finding) -> Conflict:
    """A tensor that a custom Function hung on ctx was overwritten before its backward."""
    entry = finding.save
    assert isinstance(entry, Kept)
    site = resolve(entry.raw)
    inner = _assigned(entry)
    if inner is not None:
        site = Site((inner, *site.frames))
    handle = entry.handle
    info = TensorInfo(tuple(handle.shape), str(handle.dtype).removeprefix("torch."), f"ctx.{entry.attribute}")
    name = entry.function.__name__
    save = Save(site, name, f"{name}Backward", f"ctx.{entry.attribute}", info)
    writes = tuple(write_of(w, finding) for w in _told(finding.writes))
    backward = resolve(finding.backward).user
    escape = resolve(entry.escape) if entry.escape else None
    return Conflict(
        rule="GM205",
        kind="silent",
        message=words.kept(
            name,
            entry.attribute,
            save,
            writes[0] if writes else None,
            backward,
            entry.scope.policy if finding.cause == "left" else None,
        ),
        culprits=_culprits(writes, finding, save, backward, escape),
        saved=save,
        writes=writes,
        backward=backward,
        healed_bytes=finding.kept,
        notes=words.KEPT_NOTES,
        help=words.helps("GM205"),
    )


def link_read(finding: Finding) -> Conflict:
    """A tensor that a checkpointed region read has changed before the region runs again."""
    entry = finding.save
    assert isinstance(entry, Read)
    handle = entry.handle
    found = SilentFinding(
        "GM208",
        _told(finding.writes),
        made=entry.raw,
        backward=finding.backward,
        tensor=(tuple(handle.shape), str(handle.dtype).removeprefix("torch.")),
        op=entry.op,
        facts={"why": "write" if finding.writes else "unseen"},
    )
    conflict = link_silent(found)
    if entry.escape and finding.cause == "foreign" and conflict.saved is not None:
        culprits = _culprits(
            conflict.writes, finding, conflict.saved, conflict.backward, resolve(entry.escape)
        )
        conflict = replace(conflict, culprits=culprits)
    return conflict


def _assigned(entry: Kept) -> Frame | None:
    """The line of forward (or setup_context) that put the tensor on ctx."""
    for method in ("forward", "setup_context"):
        function: Any = inspect.unwrap(getattr(entry.function, method))
        code = getattr(function, "__code__", None)
        source = parse(code.co_filename) if code is not None else None
        if code is None or source is None or not code.co_argcount:
            continue
        end = max((line for *_, line in code.co_lines() if line), default=code.co_firstlineno)
        for node in ast.walk(source.tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and node.attr == entry.attribute
                and isinstance(node.value, ast.Name)
                and code.co_firstlineno <= node.lineno <= end
            ):
                return Frame(code.co_filename, node.lineno, code.co_qualname)
    return None


def plausible(finding: SilentFinding) -> bool:
    """Where nobody saw when memory was written, the source must say that it was before the value was used again."""
    if not finding.facts.get("unsure"):
        return True
    use, escape = resolve(finding.made).user, resolve(finding.escape)
    if use is None:
        return False
    frames = escape.users
    for suspect in suspects(escape):
        for level, frame in enumerate(frames[suspect.level :], suspect.level):
            if (frame.file, frame.function) == (use.file, use.function):
                # In the function that holds the array, or once the call that writes has returned.
                at = suspect.line if level == suspect.level else frame.line
                if frame.line <= at < use.line:
                    return True
    return False


def link_silent(finding: SilentFinding) -> Conflict:
    backward = resolve(finding.backward).user if finding.backward else None
    made = resolve(finding.made)
    writes = tuple(_written(w) for w in finding.writes)
    info = TensorInfo(*finding.tensor) if finding.tensor else TensorInfo()
    save = Save(made, words.op_of(finding.op), finding.op, None, info) if made.frames else None
    first = writes[0] if writes else None
    also = resolve(finding.also).user if finding.also else None
    return Conflict(
        rule=finding.rule,
        kind="silent",
        message=words.message(finding, save, first, also, backward),
        culprits=_places(writes, made.user, also, backward, finding),
        saved=save,
        writes=writes,
        backward=backward,
        notes=words.notes(finding, also, backward),
        help=words.helps(finding.rule, finding.facts.get("why")),
    )


def _written(written: entries.Write) -> Write:
    site = resolve(written.raw)
    frame = site.user
    layout = written.layout
    info = TensorInfo(
        layout.shape,
        str(layout.dtype).removeprefix("torch."),
        written_name(frame, written.op) if frame and written.op else None,
    )
    return Write(
        site, written.op, info, "metadata" if written.how == "metadata" else "data", not written.moved
    )


def _places(
    writes: Sequence[Write],
    made: Frame | None,
    also: Frame | None,
    backward: Frame | None,
    finding: SilentFinding,
) -> tuple[Culprit, ...]:
    found: dict[tuple[str, int], Culprit] = {}
    if finding.escape:
        for write in foreign_writes(resolve(finding.escape)):
            found.setdefault((write.file, write.line), Culprit(write.file, write.line, "numpy"))
    for frame, op in [(w.site.user, w.op) for w in writes] + [
        (made, finding.op),
        (also, finding.op),
        (backward, "backward"),
    ]:
        if frame is not None:
            found.setdefault((frame.file, frame.line), Culprit(frame.file, frame.line, op))
        if found and writes:
            break
    return tuple(found.values())
