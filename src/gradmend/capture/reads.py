"""What backward *reads*, which is less than what forward saved.

Train-mode BatchNorm saves its running statistics and ignores them; most pools save their input for its shape
alone. reads.json lists such slots, measured by tools/make_reads.py: a slot that is not listed is read.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import torch

# Of each condition all features must hold, of a slot's conditions one: then backward does not read the slot.
Condition = dict[str, bool]
_RAW = "_raw_saved_"


@cache
def table() -> dict[str, dict[str, list[Condition]]]:
    """Node name -> slot -> the conditions under which it is not read; {} holds always."""
    page = json.loads(files("gradmend.capture").joinpath("reads.json").read_text())
    nodes: dict[str, dict[str, Any]] = page["unread"]
    # Measured on one release. On another, only what every release has had: BatchNorm's running statistics.
    measured = _release(page["torch"]) == _release(torch.__version__)
    return {
        node: {
            slot: [{}] if when == "always" else when
            for slot, when in slots.items()
            if measured or slot.startswith("running_")
        }
        for node, slots in nodes.items()
    }


def _release(version: str) -> list[str]:
    return version.split(".")[:2]


def is_read(node: Any, slot: str | None, device: str = "cpu") -> bool:
    """Does this node's backward look at the values in this slot? True wherever we can't tell.

    The table was measured on the CPU; kernels of other devices may read what the CPU's ignore, so for those
    only what a `training` flag decides is trusted: BatchNorm's running statistics.
    """
    if slot is None:
        return True
    slots = table().get(node.name())
    if slots is None:
        return True
    return not any(
        all(_feature(node, k) is v for k, v in condition.items())
        for condition in slots.get(slot.partition("[")[0], ())
        if device == "cpu" or "training" in condition
    )


def _feature(node: Any, name: str) -> bool | None:
    if name == "grad_mode":  # backward is itself being recorded: create_graph=True
        return torch.is_grad_enabled()
    if name.startswith("needs_"):
        edges = node.next_functions
        index = int(name[6:])
        return index < len(edges) and edges[index][0] is not None
    value = getattr(node, f"_saved_{name}", None)
    return value if isinstance(value, bool) else None


def features_of(node: Any) -> Condition:
    """Everything that a condition may speak of: the node's flags, and which of its inputs need a gradient."""
    found = {f"needs_{i}": edge is not None for i, (edge, _) in enumerate(node.next_functions)}
    for attribute in dir(node):
        if attribute.startswith("_saved_") and isinstance(value := getattr(node, attribute), bool):
            found[attribute.removeprefix("_saved_")] = value
    return found


_raw_names_of: dict[type, tuple[str, ...]] = {}


def _raw_names(kind: type) -> tuple[str, ...]:
    names = _raw_names_of.get(kind)
    if names is None:
        names = tuple(name for name in dir(kind) if name.startswith(_RAW))
        if kind.__module__ != "torch.autograd.function":  # a custom Function's class may come and go
            _raw_names_of[kind] = names
    return names


def slot_of(node: Any, handle: object) -> str | None:
    """The slot for which PyTorch asks `handle` back: "self", "indices[0]", "tensors[1]" of a custom Function.

    None for nodes that expose nothing: CopySlices, and the foreach ops.
    """
    for name in _raw_names(type(node)):
        try:
            saved = getattr(node, name)
        except RuntimeError:  # already freed
            continue
        if isinstance(saved, tuple):
            for i, one in enumerate(saved):
                if one is not None and one.data is handle:
                    return f"{name[len(_RAW) :]}[{i}]"
        elif saved is not None and saved.data is handle:
            return name[len(_RAW) :]
    return None
