"""Index and mask writes touch single elements: how to keep just those and put them back."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C import TensorBase as Base

from gradmend.capture.memory.undo import Elements
from gradmend.capture.unseen import without_grad

_AS_THEY_ARE = (bool, int, torch.SymInt)
Args = Sequence[Any]
Kwargs = Mapping[str, Any]


def _arg(args: Args, kwargs: Kwargs, position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs[name]


def _frozen(key: Any) -> Any:
    """The key as it is now: the program may change an index tensor after it used it."""
    if isinstance(key, torch.Tensor):
        return Base.clone(Base.detach(key))
    if isinstance(key, (tuple, list)):
        return type(key)(_frozen(k) for k in key)
    if hasattr(key, "__array__"):
        return torch.tensor(key)
    if hasattr(key, "__getitem__") and hasattr(key, "__len__"):  # any other sequence is read as a list
        return [_frozen(key[i]) for i in range(len(key))]
    if hasattr(key, "__index__") and type(key) not in _AS_THEY_ARE:
        return operator.index(key)
    return key


def _by_key(key: Any) -> Elements:
    key = _frozen(key)
    return Elements(
        lambda view: Base.clone(Base.__getitem__(view, key)),
        lambda view, old: Base.__setitem__(view, key, old),
    )


def _item(args: Args, kwargs: Kwargs) -> Elements:
    return _by_key(_arg(args, kwargs, 0, "key"))


def _index(args: Args, kwargs: Kwargs) -> Elements:
    dim, index = _arg(args, kwargs, 0, "dim"), _frozen(_arg(args, kwargs, 1, "index")).reshape(-1)
    return Elements(
        lambda view: Base.index_select(view, dim, index) if view.dim() else Base.clone(view),
        lambda view, old: Base.index_copy_(view, dim, index, old) if view.dim() else Base.copy_(view, old),
    )


def _index_put(args: Args, kwargs: Kwargs) -> Elements:
    # Here a missing index means the whole dimension; in brackets None would add one.
    return _by_key(tuple(slice(None) if i is None else i for i in _arg(args, kwargs, 0, "indices")))


def _masked(args: Args, kwargs: Kwargs) -> Elements:
    mask = _frozen(_arg(args, kwargs, 0, "mask"))
    return Elements(
        lambda view: Base.masked_select(view, mask),
        lambda view, old: Base.masked_scatter_(view, mask, old),
    )


def _scatter(args: Args, kwargs: Kwargs) -> Elements:
    dim, index = _arg(args, kwargs, 0, "dim"), _frozen(_arg(args, kwargs, 1, "index"))
    return Elements(
        lambda view: Base.gather(view, dim, index),
        lambda view, old: Base.scatter_(view, dim, index, old),
    )


def _put(args: Args, kwargs: Kwargs) -> Elements:
    index = _frozen(_arg(args, kwargs, 0, "index"))
    return Elements(
        lambda view: Base.take(view, index),
        lambda view, old: Base.put_(view, index, old),
    )


BY_OP: dict[str, Callable[[Args, Kwargs], Elements]] = {
    "__setitem__": _item,
    "index_put_": _index_put,
    "index_add_": _index,
    "index_copy_": _index,
    "index_fill_": _index,
    "index_reduce_": _index,
    "masked_fill_": _masked,
    "masked_scatter_": _masked,
    "scatter_": _scatter,
    "scatter_add_": _scatter,
    "scatter_reduce_": _scatter,
    "put_": _put,
}


def elements_of(op: str, args: Args, kwargs: Kwargs) -> Elements | None:
    """The elements an index op will touch; None when it is not one, or its arguments are not understood."""
    make = BY_OP.get(op)
    if make is None:
        return None
    try:
        return without_grad(make, args, kwargs)
    except (KeyError, IndexError, TypeError, RuntimeError, ValueError):
        return None  # PyTorch itself will say what is wrong with them
