"""What backward *reads*, which is less than what forward saved.

Train-mode BatchNorm saves its running statistics and ignores them; most pools save their input for its shape
alone. reads.json lists such slots, measured by tools/make_reads.py: a slot that is not listed is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from gradmend.capture.graph import incoming
from gradmend.compat.releases import release

# Of each condition all features must hold, of a slot's conditions one: then backward does not read the slot.
Feature = bool | int | float | str | None
Condition = dict[str, Feature]
_RAW = "_raw_saved_"
_Custom = torch._C._FunctionBase


@cache
def table() -> dict[str, dict[str, list[Condition]]]:
    """Node name -> slot -> the conditions under which it is not read; {} holds always."""
    page = json.loads(files("gradmend.capture.graph").joinpath("reads.json").read_text())
    ours = release(torch.__version__)
    measured = ours in measured_on(page)
    return {
        node: {
            slot: [{}] if when == "always" else when
            for slot, when in slots.items()
            # On a release that nobody measured, only what every one has had: BatchNorm's running statistics.
            if measured or slot.startswith("running_")
        }
        for node, slots in table_of(page, ours).items()
    }


def measured_on(page: dict[str, Any]) -> list[str]:
    return [page["base"], *page["differs"]]


def table_of(page: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """What was measured on one release: the base, and what differs from it there."""
    nodes = {**page["unread"], **page["differs"].get(name, {})}
    return {node: slots for node, slots in nodes.items() if slots}


def is_read(node: Any, slot: str | None, device: str = "cpu") -> bool:
    """Does this node's backward look at the values in this slot? True wherever we can't tell.

    The table was measured on the CPU. Kernels of other devices may read what the CPU's ignore, so for those it is
    only trusted on BatchNorm's running statistics in training.
    """
    if slot is None:
        return True
    slots = table().get(node.name())
    if slots is None:
        return True
    return not any(
        all(type(have := _feature(node, k)) is type(v) and have == v for k, v in condition.items())
        for condition in slots.get(slot.partition("[")[0], ())
        if device == "cpu" or (slot.startswith("running_") and condition in _IN_TRAINING)
    )


_IN_TRAINING: tuple[Condition, ...] = ({"training": True}, {"train": True}, {})


# Slots whose sparse tensor only says where the entries are. Measured: tests/capture/graph/test_reads.py.
_PLACES_ONLY = {
    "SparseCooTensorWithDimsAndTensorsBackward0": "result",
    "SparseCompressedTensorBackward0": "result",
    "ToDenseBackward0": "self",
    "ValuesBackward0": "self",
    "SparseMaskBackward0": "mask",
    "SparseSumBackward0": "self",
}


def reads_places_only(node: Any, slot: str | None) -> bool:
    """Whether this node's backward reads the places of the sparse tensor in this slot, and not its values."""
    return slot is not None and _PLACES_ONLY.get(node.name()) == slot


_UNKNOWN = "?"  # equals no value that a condition asks for


def _feature(node: Any, name: str) -> Feature:
    if name == "grad_mode":  # backward is itself being recorded: create_graph=True
        return torch.is_grad_enabled()
    kind, _, number = name.rpartition("_")
    if kind in ("needs", "complex") and number.isdigit():
        edges, index = node.next_functions, int(number)
        if kind == "needs":
            return index < len(edges) and edges[index][0] is not None
        return _is_complex(edges[index]) if index < len(edges) else _UNKNOWN
    if kind == "arrives" and number.isdigit():
        came = incoming.reached(node)
        return _UNKNOWN if came is None else int(number) in came
    # Never a tensor's name: asking for that would unpack it.
    value = getattr(node, f"_saved_{name}", _UNKNOWN)
    return value if isinstance(value, Feature) else _UNKNOWN


def _is_complex(edge: tuple[Any, int]) -> Feature:
    """Is the input that this edge leads to complex? Its own node knows; where nothing needs a gradient, nobody does."""
    node, number = edge
    try:
        return bool(node._input_metadata[number].dtype.is_complex)
    except (AttributeError, IndexError, RuntimeError):
        return _UNKNOWN


def features_of(node: Any) -> Condition:
    """Everything that a condition may speak of: the node's plain values, which of its inputs need a gradient, and
    which are complex."""
    found: Condition = {}
    for i, edge in enumerate(node.next_functions):
        found[f"needs_{i}"] = edge[0] is not None
        if (kind := _is_complex(edge)) != _UNKNOWN:
            found[f"complex_{i}"] = kind
    tensors = dict(slots(node))
    for attribute in dir(node):
        name = attribute.removeprefix("_saved_")
        if name != attribute and name not in tensors:
            value = getattr(node, attribute)
            if isinstance(value, Feature):
                found[name] = value
    return found


def slots(node: Any) -> tuple[tuple[str, str], ...]:
    """The names of the tensors that this kind of node keeps, each with the attribute that shows it as it was packed."""
    # A custom Function's class may come and go, and all of them have the same.
    kind: Any = _Custom if isinstance(node, _Custom) else type(node)
    return _slots(kind)


@cache
def _slots(kind: type) -> tuple[tuple[str, str], ...]:
    return tuple((name.removeprefix(_RAW), name) for name in dir(kind) if name.startswith(_RAW))


def packed(node: Any) -> Iterator[tuple[str, int | None, Any]]:
    """What a node still keeps: the slot, the place in it where that is a list, and what a hook made of the tensor."""
    for slot, raw in slots(node):
        try:
            saved = getattr(node, raw)
        except RuntimeError:  # already freed
            continue
        if isinstance(saved, tuple):
            for place, one in enumerate(saved):
                yield slot, place, getattr(one, "data", None)
        else:
            yield slot, None, getattr(saved, "data", None)


def slot_of(node: Any, handle: object) -> str | None:
    """The slot for which PyTorch asks `handle` back: "self", "indices[0]", "tensors[1]" of a custom Function.

    None for nodes that expose nothing: CopySlices, and the foreach ops.
    """
    for slot, place, made in packed(node):
        if made is handle:
            return slot if place is None else f"{slot}[{place}]"
    return None
