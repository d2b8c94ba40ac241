"""From what people and PyTorch call an op to what is known of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from typing import Any

from gradmend.story.knowledge import _entries
from gradmend.story.knowledge._composite import EXAMPLES, measure
from gradmend.story.knowledge._knowledge import Knowledge

_SYMBOLS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "//": "floor_divide", "%": "remainder", "**": "pow", "@": "matmul",
    "abs": "abs", "neg": "neg", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder",
    "radd": "add", "rsub": "rsub", "rmul": "mul", "rtruediv": "div", "rpow": "pow", "rmatmul": "matmul",
    "getitem": "getitem", "setitem": "setitem",
}  # fmt: skip
_PREFIX = re.compile(
    r"^(?:torch\.nn\.functional\.|torch\.Tensor\.|torch\.ops\.aten\.|torch\.|"
    r"nn\.functional\.|Tensor\.|tensor\.|F\.|aten::|aten\.|x\.|\.)"
)
_MODULES = {
    "CrossEntropyLoss": "cross_entropy",
    "MultiheadAttention": "scaled_dot_product_attention",
    **{name: name.lower() for name in ("LSTM", "GRU", "RNN")},
}

_NODE_NOTES = {
    "CopySlices": "A view was written in place: this node passes the gradient on to the base, and hides the op that wrote.",
    "AccumulateGrad": "This node adds the gradient to a leaf's .grad; it keeps the leaf itself.",
    "CompiledFunctionBackward": "The backward of code that torch.compile made: it keeps what its graph needs.",
    "CheckpointFunctionBackward": "torch.utils.checkpoint: it keeps the region's inputs, to run it again in backward.",
}


class UnknownOp(LookupError):
    """There is no such op; the message has the names that come close."""


def normalise(name: str) -> tuple[str, bool]:
    """ "torch.Tensor.__imul__", "*=", "F.relu_", "aten::mul_.Tensor" -> the bare op, and whether it is in place."""
    name = name.strip().removesuffix("()")
    if name == "@=":  # Python has no in-place matmul for tensors: it rebinds
        return "matmul", False
    if name.endswith("=") and name[:-1] in _SYMBOLS:
        return _SYMBOLS[name[:-1]], True
    if name in _SYMBOLS:
        return _SYMBOLS[name], False
    name = _PREFIX.sub("", name)
    if name.startswith("__") and name.endswith("__"):
        bare = name[2:-2]
        if bare == "setitem":
            return "setitem", True
        if bare in _SYMBOLS:
            return _SYMBOLS[bare], False
        inplace = bare.startswith("i") and bare not in ("invert",)
        bare = bare[1:] if inplace else bare
        return _SYMBOLS.get(bare, bare), inplace
    if name.startswith("nn.") or (name[:1].isupper() and _module(name)):
        return _functional(name.removeprefix("nn.")), False
    name = re.sub(r"^(linalg|special|fft)\.", lambda m: m.group(0)[:-1] + "_", name)
    if not name.startswith("_"):
        name = name.partition(".")[0]
    inplace = name.endswith("_") and not name.endswith("__")
    return name.rstrip("_") if inplace else name, inplace


def _module(name: str) -> bool:
    """Is it one of torch.nn: "LSTM"?"""
    import torch

    kind = getattr(torch.nn, name, None)
    return isinstance(kind, type) and issubclass(kind, torch.nn.Module)


def _functional(module: str) -> str:
    """nn.ReLU -> relu, nn.BatchNorm2d -> batch_norm: the function behind a module, or the name as it is."""
    import torch

    if module in _MODULES:
        return _MODULES[module]
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", module).lower()
    for name in (snake, snake.replace("_", ""), re.sub(r"\dd$", "", snake), snake.removesuffix("_loss")):
        if hasattr(torch.nn.functional, name) or hasattr(torch, name):
            return name
    return module


def saves(op: str | Callable[..., Any]) -> Knowledge:
    """What `op` keeps for backward: saves(torch.exp), saves("mul_"), saves("*="), saves("F.cross_entropy").

    >>> saves("exp").keeps
    ('result',)
    >>> saves("exp").writing_output_is_safe
    False
    """
    return _saves(op if isinstance(op, str) else op.__name__)


@cache
def _saves(op: str) -> Knowledge:
    name, inplace = normalise(op)
    shown = f"{name}_" if inplace and name not in ("setitem",) else name
    table = _entries.by_op()
    entries = table.get(f"{name}_", ()) if inplace else ()
    entries = entries or table.get(name, ()) or table.get(f"{name}_", ())
    own = tuple(e for e in entries if not e.composite and e.key == "Default" and e.node)
    if own:
        return Knowledge(shown, own, inplace)
    if entries and not any(e.composite for e in entries):
        return Knowledge(shown, entries, inplace, note=f"{shown} passes no gradient on, and keeps nothing.")
    measured = measure(shown if inplace else name)
    if measured is None and inplace:
        measured = measure(name)
    if measured is not None:
        return Knowledge(shown, (), inplace, measured, note=_made_of(shown, measured.nodes))
    if _module(name):
        raise UnknownOp(
            f"nn.{name} is a module made of others: ask for those that it calls, for example nn.Linear or "
            "F.scaled_dot_product_attention"
        )
    if not _exists(name, inplace):
        close = get_close_matches(name, _all_names(), n=3, cutoff=0.6)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise UnknownOp(f"there is no op called {op!r} in torch{hint}")
    return Knowledge(
        shown,
        inplace=inplace,
        note=f"{shown} has no entry in derivatives.yaml: it is made of other ops, or passes no gradient on.",
    )


def _made_of(op: str, nodes: tuple[str, ...]) -> str:
    names = dict.fromkeys(entry.op if (entry := _entries.at_node(n)) else by_node(n).op for n in nodes)
    return f"{op} has no derivative of its own: it runs as {', '.join(names)}."


def _exists(name: str, inplace: bool) -> bool:
    import torch

    homes = (torch, torch.nn.functional, torch.Tensor, torch.special, torch.linalg, torch.fft)
    names = {name, f"{name}_"} if inplace else {name}
    return any(callable(getattr(home, n, None)) for home in homes for n in names) or any(
        torch._C._jit_get_schemas_for_operator(f"aten::{n}") for n in names
    )


def _all_names() -> list[str]:
    import torch

    return sorted({*_entries.by_op(), *EXAMPLES, *(n for n in dir(torch.nn.functional) if n.islower())})


def _spoken(op: str) -> str:
    """ "_softmax" -> "softmax", "native_batch_norm" -> "batch_norm": the name people called."""
    op = op.lstrip("_").removeprefix("native_")
    op = re.sub(r"^scaled_dot_product_\w*attention\w*$", "scaled_dot_product_attention", op)
    return op.removesuffix("_forward").removesuffix("_with_indices")


@cache
def by_node(node: str) -> Knowledge:
    """What is known of the op behind a node of the graph: by_node("ExpBackward0"). Never fails."""
    node = node.rpartition("::")[2]
    entry = _entries.at_node(node) or _entries.at_node(node.removesuffix("_copy"))
    if entry is None and node.startswith("Foreach"):
        entry = _entries.at_node(node.removeprefix("Foreach"))
    if entry is not None:
        return Knowledge(_spoken(entry.op), (entry,))
    if node in _NODE_NOTES:
        return Knowledge(node, note=_NODE_NOTES[node])
    custom = re.fullmatch(r"(\w+?)Backward", node)
    if custom:
        name = custom.group(1)
        return Knowledge(
            name,
            note=f"{name} is an autograd.Function: its backward asks for what its forward gave to ctx.save_for_backward.",
        )
    return Knowledge(node, note=f"{node} has no entry in derivatives.yaml.")
