"""The Conflict behind an exception of PyTorch's, or behind its printed text where only that is left."""

from __future__ import annotations

from dataclasses import replace

from gradmend.errors import attached
from gradmend.model import Conflict, Culprit, Frame, Save, Site, TensorInfo
from gradmend.story.failures import second_backward, versions
from gradmend.story.failures.diagnosing import diagnose, from_message
from gradmend.story.failures.recipes import recognise
from gradmend.story.failures.scene import site_of
from gradmend.story.failures.traceback_text import Printed, read
from gradmend.story.iterations import at_line
from gradmend.story.words import later_words


def conflict_of(error: BaseException | str) -> Conflict | None:
    """The Conflict behind an exception, the ones it was raised from included, or behind a text."""
    if isinstance(error, str):
        return from_text(error)
    seen: BaseException | None = error
    while seen is not None:
        found = (
            attached(seen)
            or diagnose(seen)
            or _mismatch(str(seen), site_of(seen), Printed(str(seen), Site(), Site(), ""))
        )
        if found is not None:
            return found
        seen = seen.__cause__ or seen.__context__
    return None


def from_text(text: str) -> Conflict | None:
    """What a traceback, or an error message alone, says."""
    printed = read(text)
    for message in dict.fromkeys((printed.message, " ".join(text.split()))):
        if second_backward.PATTERN.search(message):
            return second_backward.diagnose(printed.site)
        found = _mismatch(message, printed.site, printed) or from_message(message, printed.site)
        if found is not None:
            return found
    return None


def _mismatch(message: str, site: Site, printed: Printed) -> Conflict | None:
    if not versions.is_mismatch(message):
        return None
    facts = versions.read(message)
    backward = site.user
    watch = "run it under `gradmend run SCRIPT`, or `with gradmend.watch():`, to get the line that wrote"
    if facts is None:
        return Conflict(
            rule="GM102",
            kind="error",
            message="a tensor that an op kept for backward was overwritten before backward() used it",
            backward=backward,
            culprits=_backward_line(backward),
            notes=("the message is cut off: the tensor's shape and versions would tell more",),
            help=(watch,),
        )
    recipe = recognise(facts, printed.forward_node)
    conflict = Conflict(
        rule=recipe.rule,
        kind="error",
        message=recipe.message,
        backward=backward,
        culprits=_backward_line(backward),
        notes=recipe.notes,
        help=(*_carried_over(recipe.rule, backward), *recipe.help, watch),
    )
    return _with_forward(conflict, facts, printed)


def _carried_over(rule: str, backward: Frame | None) -> tuple[str, ...]:
    """Where the source is there: a loop that carries state over, and steps after this backward()."""
    found = at_line(backward) if rule == "GM104" and backward is not None else None
    return later_words(found, backward)[1][:1] if found is not None else ()


def _with_forward(conflict: Conflict, facts: versions.Mismatch, printed: Printed) -> Conflict:
    """Anomaly mode printed where the node that missed the tensor was made: that is the line that kept it."""
    frame = printed.forward.user
    if frame is None:
        return conflict
    op = versions.op_from_node(printed.forward_node)
    save = Save(printed.forward, op, printed.forward_node, None, TensorInfo(facts.shape, facts.dtype))
    note = f"anomaly mode names {frame.file} line {frame.line} as the line that kept the tensor, not the one that wrote"
    return replace(
        conflict,
        saved=save,
        notes=(note, *conflict.notes),
        culprits=(Culprit(frame.file, frame.line, op), *conflict.culprits),
    )


def _backward_line(frame: Frame | None) -> tuple[Culprit, ...]:
    return (Culprit(frame.file, frame.line, "backward"),) if frame else ()
