"""From a Conflict to a Story: the write first, then the save, then the backward that missed it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace

from gradmend.model import Conflict, Frame, Span, Story, Write
from gradmend.story.advice import advised, prover
from gradmend.story.words import ALSO, common, is_output, needed, spoken, stepper

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
    "store": "the old graph is stored here",
    "numpy": "this line may have changed the array, past PyTorch",
    "left": "this line may have changed it",
    "escape": "the memory is shared with code outside torch here",
}
_HEALED = {**_FIRST, "backward": "this backward() goes through a graph that was used before"}
# Of an in-place write that cuts nothing, and of a line that made what two backwards share.
_SECOND = "this backward() goes into it again"
_KEEPS = "{op}() keeps the old graph here"
_MADE = "made here, by {op}"
_OTHER = {**_FIRST, "backward": "an earlier backward() was here", "read": "a view is read here"}

_OF_HEAL = re.compile(
    r"; gradmend\.heal\(\) runs the program as it is with the right gradient|gradmend\.heal\(\) runs it as it is; "
)

# What happened at the second place, where it is not a Save.
_LABELS = {
    "GM206": "{op} is called here",
    "GM207": "this branch gets the same gradient",
    "GM208": "the checkpointed region is here",
    "GM210": "{op} uses it again here",
}


def tell(conflict: Conflict, healed: bool = False, heals: bool = False) -> Story:
    """`healed`: the program went on with the right gradient. `heals`: it runs under heal()."""
    conflict = advised(conflict)
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
        what = f"{_writer(write)} changes {name} in place here"
        if conflict.rule == "GM204":
            what = f"{name} gets other memory here"
        add(write.site.user, what, True)
    elif conflict.culprits:
        # An error of PyTorch's own: the line that raised, and for a second backward what led to it.
        first, *rest = conflict.culprits
        add(
            Frame(first.file, first.line, ""),
            _first_label(conflict, first.op, healed),
            True,
        )
        at_backward = (conflict.backward.file, conflict.backward.line) if conflict.backward else None
        for culprit in rest:
            if (culprit.file, culprit.line) == at_backward:
                continue  # told below
            add(Frame(culprit.file, culprit.line, ""), _OTHER.get(culprit.op, _MADE.format(op=culprit.op)))
    if conflict.saved is not None:
        save = conflict.saved
        name = f"`{save.tensor.name}`" if save.tensor.name else str(save.tensor)
        label = _LABELS.get(conflict.rule)
        if label is None:
            label = "{op} returned {name} here" if is_output(save) else "{op} used {name} here"
        add(save.site.user, label.format(op=spoken(save), name=name))
    add(
        conflict.backward,
        _SECOND if conflict.rule == "GM131" and not healed else "backward() needs it here",
    )
    notes = list(conflict.notes)
    if conflict.why:
        notes.insert(0, conflict.why.rstrip("."))
    notes += _chains(conflict)
    return Story(
        level="healed" if healed else "error" if conflict.kind != "refused-but-right" else "warning",
        code=conflict.rule,
        message=conflict.message,
        spans=tuple(spans),
        notes=tuple(notes),
        helps=_helps(conflict, healed, heals or healed),
    )


def _first_label(conflict: Conflict, op: str, healed: bool) -> str:
    held = conflict.carrier
    if held is not None and held.how == "in-place":
        return _KEEPS.format(op="the assignment" if op == "__setitem__" else op).replace(
            "assignment()", "assignment"
        )
    known = (_HEALED if healed else _FIRST).get(op)
    if known is None:
        known = _MADE.format(op=op) if conflict.rule == "GM131" and op else "look here first"
    return known


def _writer(write: Write) -> str:
    """Who wrote, as the user would say it: "SGD.step" rather than the `add_` inside it."""
    return stepper(write) or _SPOKEN.get(write.op, write.op)


_MOST_ALSO = 6


def together(conflicts: Sequence[Conflict]) -> list[Conflict]:
    """One conflict for each line to blame, with what else that line changed as a note."""
    groups: dict[object, list[Conflict]] = {}
    for order, conflict in enumerate(conflicts):
        first = conflict.culprits[0] if conflict.culprits and conflict.writes else None
        key = (first.file, first.line, conflict.kind == "refused-but-right") if first is not None else order
        groups.setdefault(key, []).append(conflict)
    return [_with_others(first, others) for first, *others in groups.values()]


def _with_others(first: Conflict, others: Sequence[Conflict]) -> Conflict:
    also: dict[str, None] = {}
    for other in others:
        if other.saved is not None and first.saved is not None:
            near = common(first.saved.site.user, other.saved.site.user, first.backward)
            also[needed(other.saved, near)] = None
    also.pop(needed(first.saved, common(first.saved.site.user)) if first.saved else "", None)
    if not also:
        return first
    told = ", ".join(list(also)[:_MOST_ALSO]) + (
        f", and {len(also) - _MOST_ALSO} more" if len(also) > _MOST_ALSO else ""
    )
    return replace(first, notes=(*first.notes, f"{ALSO}{told}"))


def _helps(conflict: Conflict, healed: bool, heals: bool) -> tuple[str, ...]:
    proves = prover(conflict) if conflict.writes or conflict.edit else ""
    if healed:
        return tuple(filter(None, (conflict.edit, proves)))
    first, rest = conflict.help[:-1], conflict.help[-1:]
    if heals:  # it is what runs
        rest = tuple(_OF_HEAL.sub("", line) for line in rest)
    return tuple(filter(None, (*first, proves, *rest)))


def _chains(conflict: Conflict) -> list[str]:
    """The user's call chain to the write, where it is longer than the line itself; the backward's, where a helper has both."""
    if not conflict.writes:
        return []
    wrote, asked = conflict.writes[0].site.users, conflict.asked
    ways = {"the write": wrote[1:]}
    if wrote[:1] and asked[:1] and wrote[0].function == asked[0].function and wrote[1:] != asked[1:]:
        ways["backward()"] = asked[1:]
    return [
        f"{what} was reached through "
        + ", ".join(f"{os.path.basename(f.file)}:{f.line}" for f in reversed(way))
        for what, way in ways.items()
        if way
    ]
