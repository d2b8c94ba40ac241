"""Why backward needs a value: the op's formula, in the names that the user's line has for its tensors."""

from __future__ import annotations

import re

from gradmend.model import Save
from gradmend.story.knowledge import Knowledge
from gradmend.story.names import argument_name, result_name
from gradmend.story.words import is_direct, is_output, spoken

_RECURRENT = frozenset(
    {"mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"}
)
_MOST_INPUTS = 3
_SIMPLE = re.compile(r"[\w.]+(\[[\w\s,:.+-]*\])?\Z")

# Layers of torch.nn, by the op that they run: what they compute from the kept tensor.
_LAYERS = {
    ("addmm", "mat1"): ("a Linear layer", "weight", "input"),
    ("addmm", "mat2"): ("a Linear layer", "input", "weight"),
    ("mm", "self"): ("a Linear layer", "weight", "input"),
    ("mm", "mat2"): ("a Linear layer", "input", "weight"),
    ("convolution", "input"): ("a convolution", "weight", "input"),
    ("convolution", "weight"): ("a convolution", "input", "weight"),
}


def why(knowledge: Knowledge, save: Save) -> str:
    """ "sigmoid computes the gradient of `x` from its output: grad * h * (1 - h)"."""
    slot = (save.slot or "").partition("[")[0]
    if not slot:
        return knowledge.note.rstrip(".")
    layer = _LAYERS.get((knowledge.op, slot)) if not is_direct(save.site) else None
    if layer is not None and any(f.owner == "torch" and "/nn/" in f.file for f in save.site.frames):
        who, of, given = layer
        return f"{who} computes the gradient of its {of} from its {given}"
    found = knowledge.reason(slot)
    if found is None:
        return knowledge.note.rstrip(".")
    inputs, formula = found
    names = _names(save, knowledge.op, {slot, *inputs, *re.findall(r"[a-z]\w*", formula or "")})
    source = "its output" if is_output(save) else knowledge.name_of(slot)
    if not is_output(save) and save.tensor.name:
        source = f"`{save.tensor.name}`"
    of = " and ".join(f"`{names[n]}`" if n in names else _input(n, len(inputs)) for n in inputs)
    if len(inputs) > _MOST_INPUTS:
        of = "its inputs"
    who = "a recurrent layer" if knowledge.op in _RECURRENT else spoken(save)
    told = f"{who} computes the gradient of {of} from {source}"
    if (
        not formula
        or formula.startswith("from ")
        or not set(re.findall(r"\b(?:self|other|result\d?)\b", formula)) <= set(names)
    ):
        return told  # a formula in names that the user never wrote explains nothing
    shown = re.sub(r"[a-z]\w*", lambda m: names.get(m.group(), m.group()), formula)
    return f"{told}: {shown}"


def _input(name: str, count: int) -> str:
    return "its input" if count == 1 and name in ("self", "input") else f"its input `{name}`"


def _names(save: Save, op: str, slots: set[str]) -> dict[str, str]:
    """slot -> what the user's line calls it, where that is short enough to stand in a formula."""
    frame = save.site.user
    found: dict[str, str] = {}
    if frame is None or not is_direct(save.site):
        return found
    for slot in slots:
        name = result_name(frame) if slot.startswith("result") else argument_name(frame, slot, op)
        if slot == save.slot:
            name = save.tensor.name
        if name and _SIMPLE.match(name):
            found[slot] = name
    return found
