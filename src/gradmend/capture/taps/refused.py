"""Calls that PyTorch refuses in forward although they have one plain meaning. Under heal() they are made by other words.

- `torch.mul(a, b, out=buffer)` where a gradient is wanted: `buffer.copy_(torch.mul(a, b))`.
- `row.add_(x)`, where `row` is a view made before its base required grad: PyTorch takes it for a leaf until somebody looks at its
  `grad_fn`. So does `b[i]`, made in time, and nothing is told.
- `view.detach_()`: from here on the name is what `view.detach()` returns.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._C import TensorBase as Base

from gradmend.capture.edits import live_edits
from gradmend.capture.ledger import scopes
from gradmend.capture.sites import Raw, raw_here

_OUT = "arguments don't support automatic differentiation"
_LEAF = "a leaf Variable that requires grad is being used in an in-place operation"
_SEVERAL = (
    "This view is the output of a function that returns multiple views. Such functions do not allow the output views to be "
    "modified inplace. You should replace the inplace operation by an out-of-place one."
)
_VIEW = "Can't detach views in-place"


def _to_tell(error: RuntimeError, words: str) -> Callable[[RuntimeError, Raw], None] | None:
    scope = scopes.current()
    if scope is None or scope.policy != "heal" or words not in str(error):
        return None
    return scope.refused


def into(error: RuntimeError, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a call with `out=` that raised this returns, or None where the error stands."""
    tell = _to_tell(error, _OUT)
    if tell is None:
        return None
    out = kwargs["out"]
    buffers = [out] if isinstance(out, torch.Tensor) else list(out)
    if any(b.is_leaf and b.requires_grad for b in buffers):
        return None  # a leaf written in grad mode: two meanings
    if any(b.is_inference() for b in buffers):
        return None  # nothing may write to it
    made = call(*args, **{k: v for k, v in kwargs.items() if k != "out"})
    results = [made] if isinstance(made, torch.Tensor) else list(made)
    pairs = list(zip(buffers, results, strict=True))
    if not all(torch.can_cast(r.dtype, b.dtype) for b, r in pairs):
        return None  # PyTorch would refuse that too
    if any(b.numel() and b.shape != r.shape for b, r in pairs):
        return None  # it would be resized, with a warning
    for buffer, result in pairs:
        if buffer.shape != result.shape:
            buffer.resize_(result.shape)
        if not buffer.is_leaf and not buffer._is_view() and not buffer.retains_grad:
            Base.detach_(buffer)  # all of it is overwritten: it owes nothing to what it was
        buffer.copy_(result)
    tell(error, raw_here())
    return out if isinstance(made, torch.Tensor) else type(made)(buffers)  # by the names of its results


# Views that heal() made one by one: by id, each with the name that PyTorch's refusal of a write would give it.
_single: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}


def made_single(views: Sequence[torch.Tensor], op: str, awake: set[str]) -> None:
    """PyTorch would refuse a write to one of these: the first one is reported."""

    def gone(key: int, _: object) -> None:
        _single.pop(key, None)
        if not _single:
            awake.discard("views")

    node = "".join(map(str.title, op.split("_"))) + "Backward0"
    for i, view in enumerate(views):
        _single[id(view)] = weakref.ref(view, partial(gone, id(view))), f"Output {i} of {node}"
    if views:
        awake.add("views")


def written(targets: Sequence[torch.Tensor]) -> None:
    """Reports a write that PyTorch refuses for views that one call made."""
    for t in targets:
        ref, output = _single.get(id(t), (None, ""))
        if ref is None or ref() is not t or not torch.is_grad_enabled():
            continue
        error = RuntimeError(f"{output} is a view and is being modified inplace. {_SEVERAL}")
        if (tell := _to_tell(error, _SEVERAL)) is not None:
            tell(error, raw_here())


def renewed(error: RuntimeError, args: Sequence[Any]) -> bool:
    """Whether the write that raised this may be made now: the view has its history, and nothing was written yet."""
    t = next((a for a in args if isinstance(a, torch.Tensor)), None)  # an overload comes before it
    if t is None or _to_tell(error, _LEAF) is None:
        return False
    return t._is_view() and t.grad_fn is not None  # to ask is to renew


def detached(error: RuntimeError, view: torch.Tensor) -> torch.Tensor | None:
    """The view as `detach_()` should have left it, or None where the error stands."""
    tell = _to_tell(error, _VIEW)
    if tell is None:
        return None
    live_edits.alias(view)  # what is written to it is written to its base, and autograd won't see it
    try:
        torch._C._swap_tensor_impl(view, Base.detach(view))
    except RuntimeError:
        return None  # somebody in C++ holds it
    tell(error, raw_here())
    return view
