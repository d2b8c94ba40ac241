"""What a version mismatch most likely is, from its message alone: shape, dtype, node and versions.

The node in the message is the one that made the tensor as autograd has it now. If the op keeps its own output,
it is the op that kept it; if not, the tensor was kept as an input, and a write in grad mode has put its own node there.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradmend.story.failures.versions import Mismatch, bare, knowledge_of, op_from_node
from gradmend.story.words import two_programs

# Views that PyTorch makes anew after a write to their base; `weight.t()` of a Linear is the usual one.
_VIEWS = {
    "AsStrided",
    "T",
    "Transpose",
    "Permute",
    "View",
    "Select",
    "Slice",
    "Unsqueeze",
    "Squeeze",
    "Expand",
    "Alias",
}
_LINEAR_VIEWS = {"AsStrided", "T", "Transpose"}
_MANY = 3


@dataclass(frozen=True)
class Recipe:
    """A likely cause: its rule, what happened, why that is thought, and what to do."""

    rule: str
    message: str
    notes: tuple[str, ...] = ()
    help: tuple[str, ...] = ()


def recognise(m: Mismatch, kept_by: str = "") -> Recipe:
    """The likeliest cause; what it rests on is in its notes. `kept_by`: the node that missed it, where it is known."""
    if m.is_index:
        return _index(m)
    if m.node in _LINEAR_VIEWS and len(m.shape) == 2 and m.steps == 1:
        return _stepped(
            m,
            f"a {list(m.shape)} view is what a Linear layer of {m.shape[0]} inputs and {m.shape[1]} outputs keeps of its weight",
        )
    if m.node == "" and len(m.shape) >= 3 and m.steps <= 2:
        return _stepped(m, f"a leaf of shape {list(m.shape)} is what a convolution keeps as its weight")
    if m.node == "":
        return _leaf(m)
    if m.node in _VIEWS:
        return _slice(m)
    return _op(m, bare(kept_by))


def _index(m: Mismatch) -> Recipe:
    what = "mask" if m.dtype == "bool" else "index tensor"
    return Recipe(
        "GM106",
        f"the {what} {m} was overwritten after an op had used it",
        (
            f"indexing, embedding, gather, masked_fill and their like keep the {what} they are given, not a copy",
        ),
        (f"give the op a clone of the {what}, or build the new one out of place",),
    )


def _stepped(m: Mismatch, why: str) -> Recipe:
    return Recipe(
        "GM104",
        f"a parameter, {m}, changed between its forward and this backward: most likely an optimizer stepped in between",
        (why, _counted(m)),
        (
            two_programs(
                "the forward of the later loss again after step()", "call its backward() before step()"
            ),
            "look also for load_state_dict, clip or EMA updates, and weight copies between the two",
        ),
    )


def _leaf(m: Mismatch) -> Recipe:
    return Recipe(
        "GM105",
        f"a leaf or constant, {m}, was overwritten after an op had kept it",
        (
            "the message names no node, so no op computed this tensor: a parameter, a buffer, or data",
            _counted(m),
        ),
        (
            "if it is a parameter, do the update (or step()) after backward()",
            "if it is a buffer or a batch, write to a clone of it",
        ),
    )


def _slice(m: Mismatch) -> Recipe:
    loop = "the counter is high, so it is written in a loop: " if m.version > _MANY else ""
    return Recipe(
        "GM103",
        f"a view, {m}, was kept by an op, and its base was written afterwards",
        (
            f"{loop}a version belongs to the whole storage, so a write to one row steps it for all of them",
            _counted(m),
        ),
        (
            "collect the pieces in a list and `torch.stack` them, instead of filling a tensor row by row",
            "or clone what is read from it before the next write: `h[i - 1].clone()`",
            "if it is the weight of a layer, an optimizer stepped in between: step after the last backward()",
        ),
    )


def _op(m: Mismatch, kept_by: str) -> Recipe:
    known = knowledge_of(m.node)
    name = known.op if known else m.node
    loop = (f"it was written {m.steps} times since: look for a loop",) if m.steps > _MANY else ()
    if known is not None and known.writing_output_is_safe is False and kept_by in ("", m.node):
        slot = known.kept_results[0] if known.kept_results else None
        return Recipe(
            "GM101",
            f"the result of {name}, {m}, was overwritten: {name} keeps it for backward",
            (
                *((known.why(slot).rstrip("."),) if slot else ()),
                *(
                    ()
                    if kept_by
                    else (f"or an in-place {name} is itself the write, to a tensor that another op keeps",)
                ),
                _counted(m),
                *loop,
            ),
            (
                f"find what writes to the result of {name}: `+=`, a method with an underscore, `inplace=True`, `[...] =`",
                "write it out of place there (`out = out + identity`), or clone first",
            ),
        )
    by = op_from_node(kept_by) if kept_by else "another op"
    if known is None:
        return Recipe(
            "GM102",
            f"{m}, an output of `{name}`, was overwritten after an op had kept it",
            (
                f"`{name}` is a custom Function, or an op without an entry in derivatives.yaml",
                _counted(m),
                *loop,
            ),
            ("write it out of place, or clone it before the write",),
        )
    return Recipe(
        "GM102",
        f"{m}, made by {name}, was kept by {by} as its input, and then overwritten",
        (
            f"the last op on it that autograd knows of is {name}, so an in-place {name} may be the write itself",
            _counted(m),
            *loop,
        ),
        (
            f"look for `{_sign(name)}` on that tensor after its last use, and write it out of place",
            "or clone the tensor before the write",
        ),
    )


def _sign(op: str) -> str:
    signs = {"add": "+=", "sub": "-=", "mul": "*=", "div": "/=", "pow": "**="}
    return signs.get(op, f"{op}_()")


def _counted(m: Mismatch) -> str:
    times = "once" if m.steps == 1 else f"{m.steps} times"
    return (
        f"its version went from {m.expected} to {m.version}: its memory was written {times} since it was kept"
    )
