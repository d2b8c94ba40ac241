"""From a Conflict to a Story: the write first, then the save, then the backward that missed it."""

from __future__ import annotations

import os

from gradmend.model import Conflict, Frame, Span, Story, Write

# Operators as they stand in the source.
_SPOKEN = {
    "__setitem__": "the assignment",
    **{
        f"__i{name}__": f"`{symbol}=`"
        for name, symbol in {
            "add": "+",
            "sub": "-",
            "mul": "*",
            "div": "/",
            "truediv": "/",
            "floordiv": "//",
            "mod": "%",
            "pow": "**",
            "and": "&",
            "or": "|",
            "xor": "^",
            "lshift": "<<",
            "rshift": ">>",
        }.items()
    },
}

# What a culprit is, where no tap saw a write: first of all, and beside others.
_FIRST = {
    "backward": "this backward() fails",
    "numpy": "the array is written here, past PyTorch",
    "escape": "the memory is shared with code outside torch here",
}
_OTHER = {**_FIRST, "backward": "an earlier backward() was here"}

# What happened at the second place, where it is not a Save.
_LABELS = {
    "GM206": "{op} is called here",
    "GM207": "this branch gets the same gradient",
    "GM208": "the checkpointed region is here",
    "GM210": "{op} uses it again here",
}


def tell(conflict: Conflict) -> Story:
    spans: list[Span] = []
    write = conflict.writes[0] if conflict.writes else None
    seen: set[tuple[str, int]] = set()

    def add(frame: Frame | None, label: str, primary: bool = False) -> None:
        if frame is None:
            return
        key = (frame.file, frame.line)
        if key in seen and not primary:
            return
        seen.add(key)
        spans.append(Span(frame, label, primary))

    if write is not None:
        name = f"`{write.tensor.name}`" if write.tensor.name else str(write.tensor)
        add(write.site.user, f"{_writer(write)} writes {name} here", True)
    elif conflict.culprits:
        # An error of PyTorch's own: the line that raised, and for a second backward what led to it.
        first, *rest = conflict.culprits
        add(Frame(first.file, first.line, ""), _FIRST.get(first.op, "look here first"), True)
        at_backward = (conflict.backward.file, conflict.backward.line) if conflict.backward else None
        for culprit in rest:
            if (culprit.file, culprit.line) == at_backward:
                continue  # told below
            add(Frame(culprit.file, culprit.line, ""), _OTHER.get(culprit.op, f"made here, by {culprit.op}"))
    if conflict.saved is not None:
        save = conflict.saved
        name = f"`{save.tensor.name}`" if save.tensor.name else str(save.tensor)
        label = _LABELS.get(conflict.rule, "{op} kept {name} here for backward")
        add(save.site.user, label.format(op=save.op, name=name))
    add(conflict.backward, "backward() needs it here")
    notes = list(conflict.notes)
    if conflict.why:
        notes.insert(0, conflict.why.rstrip("."))
    callers = _chain(conflict)
    if callers:
        notes.append(callers)
    return Story(
        level="error" if conflict.kind != "refused-but-right" else "warning",
        code=conflict.rule,
        message=conflict.message,
        spans=tuple(spans),
        notes=tuple(notes),
        helps=conflict.help,
    )


def _writer(write: Write) -> str:
    """Who wrote, as the user would say it: "SGD.step" rather than the `add_` inside it."""
    for frame in write.site.frames:
        if frame.owner == "user":
            break
        if frame.function.endswith(".step"):
            return frame.function
    return _SPOKEN.get(write.op, write.op)


def _chain(conflict: Conflict) -> str | None:
    """The user's call chain to the write, where it is longer than the line itself."""
    if not conflict.writes:
        return None
    users = conflict.writes[0].site.users
    if len(users) < 2:
        return None
    return "the write was reached through " + ", ".join(
        f"{os.path.basename(f.file)}:{f.line}" for f in reversed(users[1:])
    )
