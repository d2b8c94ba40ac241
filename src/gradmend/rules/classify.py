"""Which rule a conflict falls under, from its facts alone: the most particular cause that fits."""

from __future__ import annotations

from collections.abc import Sequence

from gradmend.model import Frame, Kind

# Slots that say *where* rather than *what*: overwritten ids and masks are a habit of their own.
_WHERE = frozenset(
    {"index", "indices", "mask", "condition", "target", "targets", "offsets", "tensor_indices_or_sections"}
)
_RUNNING = frozenset({"running_mean", "running_var"})
_SWAPS = frozenset({".data =", "set_", "swap_tensors", "data", "__setstate__"})


def classify(
    *,
    kind: Kind,
    quiet: bool,
    how: str,
    write_op: str,
    write_stack: Sequence[Frame],
    save_op: str,
    slot: str | None,
    saved_is_leaf: bool,
    saved_is_output: bool,
    same_region: bool,
    piecewise: bool = True,
) -> str:
    """The rule's code.

    `how` is the Write's: data, metadata, foreign (memory changed outside torch), unknown (no tap saw it),
    left (after the context was left).
    `write_stack` is innermost first. `same_region`: the write covered exactly what was saved, not a slice of it. `piecewise`: in a loop, or in pieces of
    which one was saved: as a buffer is filled.
    """
    op = write_op.removeprefix("torch.").removeprefix("aten::")
    if kind == "refused-but-right":
        return "GM133" if op == "detach_" else "GM109"
    if how == "foreign":
        return "GM202"
    if how == "left":
        return "GM110"  # by whatever line: no tap was on
    if how == "unknown":
        # A counter that moved unseen is torch's own code; one that did not move means memory shared beyond it.
        return "GM202" if quiet else "GM110"
    if op in _SWAPS:
        return "GM204"
    if op.startswith("dist."):
        return "GM209"
    if quiet:
        return _of_quiet(op, write_stack, slot)
    return _of_loud(op, write_stack, slot, saved_is_leaf, saved_is_output, same_region or not piecewise)


def _of_quiet(op: str, stack: Sequence[Frame], slot: str | None) -> str:
    if "_fused_" in op or _in_optimizer(op, stack):
        return "GM203"
    if "batch_norm" in op or "instance_norm" in op or slot in _RUNNING:
        return "GM211"
    if op.startswith("storage."):
        return "GM202"
    return "GM201"


def _of_loud(
    op: str, stack: Sequence[Frame], slot: str | None, leaf: bool, output: bool, same_region: bool
) -> str:
    if "embedding" in op:
        return "GM108"
    if _in_optimizer(op, stack):
        return "GM104"
    base = (slot or "").partition("[")[0]
    if base in _WHERE:
        return "GM106"
    # load_state_dict(), reset_parameters()
    anew = _in_file(stack[:1], ("torch/nn/modules/module.py", "torch/nn/init.py"))
    if not anew and _by_inplace_flag(op, stack):
        return "GM107"
    if leaf or anew or _in_file(stack, ("torch/nn/utils/",)):
        return "GM105"
    if not same_region:
        return "GM103"
    return "GM101" if output else "GM102"


def _in_optimizer(op: str, stack: Sequence[Frame]) -> bool:
    return op.endswith(".step") or _in_file(stack, ("torch/optim/",))


def _by_inplace_flag(op: str, stack: Sequence[Frame]) -> bool:
    """nn.ReLU(inplace=True) and F.relu(x, inplace=True) write from inside torch.nn; x.relu_() does not."""
    return op.endswith("_") and _in_file(
        stack, ("torch/nn/functional.py", "torch/nn/modules/"), innermost=True
    )


def _in_file(stack: Sequence[Frame], parts: tuple[str, ...], innermost: bool = False) -> bool:
    """Was the write made from such a file, below the user's own lines?"""
    for frame in stack:
        if frame.owner == "user":
            return False
        file = frame.file.replace("\\", "/")
        if any(part in file for part in parts):
            return True
        if innermost and frame.owner != "torch":
            return False
    return False
