"""Ops that have no derivative of their own, because they are made of others: found out by running a tiny one.

The installed torch is asked, so the answer is true for it: which nodes the op recorded, and whether what they
kept lies in the op's inputs, in its output, or in between.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Calls that a schema can't teach. `x` is what the op works on; the names are those of _values().
EXAMPLES = {
    "linear": "F.linear(x, weight, bias)",
    "bilinear": "F.bilinear(x, x2, weight3, bias)",
    "matmul": "torch.matmul(x, weight.T)",
    "einsum": "torch.einsum('ij,kj->ik', x, weight)",
    "conv1d": "F.conv1d(signal, kernel1)",
    "conv2d": "F.conv2d(image, kernel2)",
    "conv_transpose2d": "F.conv_transpose2d(image, kernel2)",
    "cross_entropy": "F.cross_entropy(x, labels)",
    "nll_loss": "F.nll_loss(x, labels)",
    "softmax": "F.softmax(x, dim=-1)",
    "log_softmax": "F.log_softmax(x, dim=-1)",
    "softmin": "F.softmin(x, dim=-1)",
    "dropout": "F.dropout(x, 0.5)",
    "normalize": "F.normalize(x)",
    "layer_norm": "F.layer_norm(x, (3,), gain, shift)",
    "group_norm": "F.group_norm(image, 1)",
    "batch_norm": "F.batch_norm(x, None, None, gain, shift, training=True)",
    "instance_norm": "F.instance_norm(image)",
    "rms_norm": "F.rms_norm(x, (3,), gain)",
    "embedding": "F.embedding(labels, weight)",
    "max_pool1d": "F.max_pool1d(signal, 2)",
    "max_pool2d": "F.max_pool2d(image, 2)",
    "avg_pool2d": "F.avg_pool2d(image, 2)",
    "adaptive_avg_pool2d": "F.adaptive_avg_pool2d(image, 1)",
    "interpolate": "F.interpolate(image, scale_factor=2)",
    "pad": "F.pad(x, (1, 1))",
    "scaled_dot_product_attention": "F.scaled_dot_product_attention(tokens, tokens, tokens)",
    "cosine_similarity": "F.cosine_similarity(x, weight2)",
    "binary_cross_entropy_with_logits": "F.binary_cross_entropy_with_logits(x, (weight2 > 0).double())",
    "clip": "torch.clip(x, 0, 1)",
    "lerp": "torch.lerp(x, weight2, 0.5)",
    "reshape": "x.reshape(3, 2)",
    "flatten": "x.flatten()",
    "getitem": "x[labels]",
    "setitem": "x.clone().index_put_((labels,), gain)",
}
# Modules that no function stands for: their weights are theirs.
_MODULES = {"lstm": "nn.LSTM(3, 2)", "gru": "nn.GRU(3, 2)", "rnn": "nn.RNN(3, 2)"}
_SHAPES = ((2, 3), (3, 3), (3,), (1, 2, 4, 4), (2, 3, 4))


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of the op recorded."""

    call: str
    nodes: tuple[str, ...]  # in the order they ran
    kept_inputs: tuple[str, ...]  # by their names in `call`
    keeps_output: bool
    keeps_between: bool  # tensors nobody else can reach


def measure(op: str) -> Measured | None:
    """Run `op` on something tiny; None where we know no call that works."""
    import torch

    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        for call, inputs, run in _candidates(op):
            try:
                found = _watch(call, inputs, run)
            except Exception:  # any refusal means: not called like this
                continue
            if found is not None:
                return found
    return None


def _watch(call: str, inputs: dict[str, Any], run: Any) -> Measured | None:
    import torch

    kept: list[Any] = []

    def pack(t: Any) -> Any:
        kept.append(t.detach())
        return t

    before = {t.grad_fn for t in inputs.values()}  # of what an op writes to, it becomes the op's own
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = run()
    outputs = [o for o in (out if isinstance(out, tuple | list) else (out,)) if isinstance(o, torch.Tensor)]
    live = [o for o in outputs if o.grad_fn is not None and o.grad_fn not in before]
    if not live:
        return None
    at = {t.untyped_storage().data_ptr() for t in kept}
    # What an in-place op has written to is its result, and its input no more.
    left = {name: t for name, t in inputs.items() if not any(t is o for o in outputs)}
    given = {t.untyped_storage().data_ptr() for t in left.values()}
    given_out = {t.untyped_storage().data_ptr() for t in outputs}
    return Measured(
        call,
        tuple(_node_names(live, before)),
        kept_inputs=tuple(name for name, t in left.items() if t.untyped_storage().data_ptr() in at),
        keeps_output=bool(at & (given_out - given)),
        keeps_between=bool(at - given - given_out),
    )


def _node_names(outputs: list[Any], before: set[Any]) -> list[str]:
    """The nodes that the op itself recorded, not those that its inputs came with."""
    names: list[str] = []
    seen, todo = set(before), [o.grad_fn for o in outputs]
    while todo:
        node = todo.pop(0)
        if node is None or node in seen or node.name().endswith("AccumulateGrad"):
            continue
        seen.add(node)
        names.append(node.name().rpartition("::")[2])
        todo += [n for n, _ in node.next_functions]
    return list(dict.fromkeys(reversed(names)))


def _candidates(op: str) -> Iterator[tuple[str, dict[str, Any], Any]]:
    import torch
    import torch.nn.functional as F

    if op in EXAMPLES:
        names: dict[str, Any] = {"torch": torch, "F": F, **_values()}
        call = EXAMPLES[op]
        told, spoken = _in_its_words(call)
        taken = {said for names_ in spoken.values() for said in names_}
        inputs = {
            said: v
            for name, v in names.items()
            if isinstance(v, torch.Tensor)
            for said in spoken.get(name, [] if name in taken else [name])
        }
        yield told, inputs, lambda: eval(call, names)  # one of our own lines above
    if op in _MODULES:
        yield _of_module(_MODULES[op])
    if op.startswith("_"):
        return  # internals trust their arguments, and may crash on ours
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{op}"):
        kinds = [str(a.type) for a in schema.arguments]
        if any(a.is_out for a in schema.arguments) or not {"Tensor", "List[Tensor]"} & set(kinds):
            continue
        for shape in _SHAPES:
            filled = _fill(schema, shape)
            if filled is None:
                continue
            inputs, args, kwargs, shown = filled
            overload = getattr(getattr(torch.ops.aten, op), schema.overload_name or "default")
            yield f"torch.ops.aten.{op}({shown})", inputs, lambda f=overload, a=args, k=kwargs: f(*a, **k)


def _of_module(made: str) -> tuple[str, dict[str, Any], Any]:
    """A call of a module that returns its output, and a state or several."""
    import torch
    from torch.utils._pytree import tree_leaves

    # As people run it: on a CPU, oneDNN takes single precision only, and keeps more.
    module = eval(made, {"nn": torch.nn})
    given = _ramp(2, 1, 3).detach().float().requires_grad_()
    inputs = {"input": given, **dict(module.named_parameters())}
    return f"{made}(input)", inputs, lambda: tree_leaves(module(given))


def _in_its_words(call: str) -> tuple[str, dict[str, list[str]]]:
    """The call with the function's own names for what we give it, and those names by ours: `target` for our `labels`."""
    import torch
    import torch.nn.functional as F

    tree = ast.parse(call, mode="eval").body
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute):
        return call, {}
    home = {"F": F, "torch": torch}.get(ast.unparse(tree.func.value))
    known = _parameters(getattr(home, tree.func.attr), tree.func.attr) if home is not None else []
    spoken: dict[str, list[str]] = {}
    for at, given in enumerate(tree.args):
        if isinstance(given, ast.Name) and at < len(known):
            spoken.setdefault(given.id, []).append(known[at])
            tree.args[at] = ast.Name(known[at])
    return ast.unparse(tree), spoken


def _parameters(function: Any, name: str) -> list[str]:
    import torch

    try:
        return list(inspect.signature(function).parameters)
    except ValueError:  # built in: its schema knows
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
        return [a.name for a in schemas[0].arguments] if schemas else []


def _fill(
    schema: Any, shape: tuple[int, ...]
) -> tuple[dict[str, Any], list[Any], dict[str, Any], str] | None:
    """The simplest arguments this schema accepts."""
    plain = {"int": 1, "float": 0.5, "number": 2, "bool": True, "List[int]": [1], "Optional[int]": None}
    inputs: dict[str, Any] = {}
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    shown: list[str] = []
    for argument in schema.arguments:
        kind = str(argument.type)
        if kind in ("Tensor", "List[Tensor]"):
            tensor = _ramp(*shape)
            # An in-place op can't be given a leaf.
            value: Any = tensor.clone() if argument.is_write else tensor
            inputs[argument.name] = value
            if kind != "Tensor":
                value = [value]
            shown.append(argument.name)
        elif argument.has_default_value():
            continue
        elif kind.startswith("Optional"):
            value = None
        elif kind in plain:
            value = plain[kind]
            shown.append(repr(value))
        else:
            return None
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return inputs, args, kwargs, ", ".join(shown)


def _ramp(*shape: int) -> Any:
    import torch

    numel = 1
    for n in shape:
        numel *= n
    return torch.linspace(0.1, 0.9, numel, dtype=torch.float64).reshape(shape).clone().requires_grad_()


def _values() -> dict[str, Any]:
    import torch

    return {
        "x": _ramp(2, 3),
        "x2": _ramp(2, 3),
        "weight": _ramp(4, 3),
        "weight2": _ramp(2, 3),
        "weight3": _ramp(4, 3, 3),
        "bias": _ramp(4),
        "gain": _ramp(3),
        "shift": _ramp(3),
        "labels": torch.tensor([0, 1]),
        "signal": _ramp(1, 2, 5),
        "image": _ramp(1, 2, 4, 4),
        "tokens": _ramp(1, 2, 3, 4),
        "kernel1": _ramp(2, 2, 3),
        "kernel2": _ramp(2, 2, 3, 3),
    }
