"""From an exception of PyTorch's to a Conflict, where it is one of this family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradmend.capture.graph.calls import BackwardCall
from gradmend.capture.sites import resolve
from gradmend.errors import GradmendError
from gradmend.model import Conflict, Culprit, Site
from gradmend.story.failures import graphs, second_backward, sparse, writes
from gradmend.story.failures.scene import Scene, Told, site_of, write_op
from gradmend.story.failures.used_up import CreationSite

CAUSES = (*writes.CAUSES, *graphs.CAUSES)


def diagnose(
    exc: BaseException,
    *,
    history: Sequence[BackwardCall] = (),
    roots: Sequence[Any] = (),
    at: Site | None = None,
    creation_site: CreationSite | None = None,
    healing: bool = False,
) -> Conflict | None:
    """The story of one of PyTorch's own errors, or None where the error is of another kind.

    `at` is where it was raised, when the traceback does not reach the user's line yet. `roots` are what
    backward was given, `history` the backward calls up to and with the failing one. `healing`: raised under heal().
    """
    if isinstance(exc, AttributeError) and not isinstance(exc, GradmendError):
        return sparse.tell_missing_grad(exc, at if at is not None else site_of(exc))
    if not isinstance(exc, sparse.KINDS) or isinstance(exc, GradmendError):
        return None
    where = at if at is not None else site_of(exc)
    text = str(exc)
    if at is not None and not second_backward.PATTERN.search(text):
        # A hook, or a custom backward, raised inside the backward call: its line is the one to look at.
        raw = getattr(exc, "raw", None)  # of a write that was made, and read after all
        inside = resolve(raw) if isinstance(raw, tuple) else site_of(exc)
        where = Site((*inside.frames, *at.frames)) if inside.users else at
    told = sparse.tell(exc, where, sure=True)
    if told is not None or not isinstance(exc, RuntimeError):
        return told
    if second_backward.PATTERN.search(text):
        if not roots and not history and not _in_backward(where):
            return _freed_access(where)
        return second_backward.diagnose(
            where, roots=roots, history=history, creation_site=creation_site, healing=healing
        )
    return from_message(text, where, exc) or sparse.tell(exc, where, sure=False)


def from_message(text: str, where: Site, error: BaseException | None = None) -> Conflict | None:
    """The causes that the message and the line settle between them."""
    for cause in CAUSES:
        match = cause.pattern.search(text)
        if match is None:
            continue
        scene = Scene(where, error)
        told = cause.tell(match, scene)
        frame = scene.frame
        return Conflict(
            rule=cause.rule,
            kind="error",
            message=told.message,
            culprits=_culprits(scene, told),
            backward=frame if cause in graphs.CAUSES else None,
            notes=(*told.notes, *_library_note(where)),
            help=told.help,
        )
    return None


def _culprits(scene: Scene, told: Told) -> tuple[Culprit, ...]:
    frame = scene.frame
    if frame is None:
        return ()
    if told.write is None:
        return (Culprit(frame.file, frame.line, scene.op),)
    write = Culprit(frame.file, told.write.lineno, write_op(told.write))
    return write, Culprit(frame.file, frame.line, "read")


def _library_note(where: Site) -> tuple[str, ...]:
    library = where.library
    if library is None:
        return ()
    return (f"the write itself is in a library: {library.file}:{library.line}, in {library.function}",)


def _in_backward(where: Site) -> bool:
    return any(f.owner == "torch" and "autograd" in f.file for f in where.frames)


def _freed_access(where: Site) -> Conflict:
    frame = where.user
    return Conflict(
        rule=second_backward.RULE,
        kind="error",
        message="this line asks a node for a tensor that it kept, after backward has freed it",
        culprits=(Culprit(frame.file, frame.line, ""),) if frame else (),
        help=("ask before backward, or give backward `retain_graph=True`",),
    )
