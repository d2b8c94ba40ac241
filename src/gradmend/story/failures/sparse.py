"""Errors of PyTorch's sparse tensors, as conflicts of the rules GM301 and up. `gradmend.sparse.stories` has the words."""

from __future__ import annotations

import re

from gradmend.model import Conflict, Culprit, Site
from gradmend.sparse.stories import CAUSES, recognise

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


def rule_text(code: str) -> str | None:
    """A rule of the sparse family for a terminal; None where there is no such rule."""
    told = [c.story for c in CAUSES if c.story.rule == code.upper()]
    if not told:
        return None
    # What a message fills in stands in angle brackets here.
    text = "\n".join(f"{s.rule} {s.title}\n\n{s.happened}\n\nInstead: {s.write}\n" for s in told)
    return re.sub(r"\{(\w+)\}", r"<\1>", text)
