"""Errors of PyTorch's sparse tensors, as conflicts of the rules GM301 and up. `gradmend.rules` has the words."""

from __future__ import annotations

from gradmend.model import Conflict, Culprit, Site
from gradmend.rules._messages import recognise

# PyTorch says these in types of its own choosing.
KINDS = (RuntimeError, TypeError, ValueError)


def tell(exc: BaseException, where: Site, *, sure: bool) -> Conflict | None:
    """The conflict behind an error of a sparse tensor; `sure`: only where the message leaves no other cause."""
    story = recognise(type(exc).__name__, str(exc))
    if story is None or (sure and not story.sure):
        return None
    frame = where.user
    return Conflict(
        rule=story.rule,
        kind="error",
        message=story.title,
        culprits=(Culprit(frame.file, frame.line, "sparse"),) if frame else (),
        notes=(story.happened.rstrip("."),),
        help=(story.write.rstrip("."),),
    )
