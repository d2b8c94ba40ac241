"""What does this op keep? In a few words, from the shipped table."""

from __future__ import annotations

import re

from gradmend.check import table

_WORD = re.compile(r"[A-Za-z_]\w*")


def word_at(line: str, column: int) -> str:
    """The name under the cursor; columns count from 0."""
    for found in _WORD.finditer(line):
        if found.start() <= column <= found.end():
            return found.group()
    return ""


def about(word: str) -> str | None:
    """Markdown on an op, a module of torch.nn, or an in-place method; None for any other word."""
    from gradmend.check.walk.kinds import snake

    inplace = table.is_inplace(word)
    name = word if table.op(word) is not None else word.removesuffix("_") if inplace else snake(word)
    info = table.op(name)
    if info is None:
        return f"**{word}** writes in place." if inplace else None
    inputs = [slot for slot in info.slots if slot != "result"]
    kept = [
        *(f"`{slot}`" for slot in inputs if not (inplace and slot in ("self", "input"))),
        *(["its result"] if info.keeps_result else []),
    ]
    lines = [f"**{word}** keeps {' and '.join(kept) if kept else 'none of its tensors'} for backward."]
    if inplace:
        lines.append("It writes in place: whoever kept the old value for backward will find another.")
    if info.keeps_result:
        lines.append("Writing to its result before backward() is not safe.")
    elif info.view:
        lines.append("Its result is a view: writing to it writes to the tensor it was made from.")
    else:
        lines.append("Writing to its result is safe.")
    if inputs and not inplace:
        lines.append(
            f"Writing to {' or '.join(f'`{s}`' for s in inputs)} before backward() is not safe, where a gradient needs it."
        )
    return "\n\n".join(lines)
