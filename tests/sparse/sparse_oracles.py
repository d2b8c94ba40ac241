"""What each operation must answer: the dense operation of that name, or what the documentation says instead."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradmend.sparse import Pattern, SparseTensor
from gradmend.sparse.ops.elementwise.unary import KEEPS_ZERO_NN

Oracle = Callable[..., Any]


class Unlike(Exception):
    """The answer isn't what it must be."""


def dense(x: Any) -> Any:
    return x.to_dense() if isinstance(x, SparseTensor) else x


def stored(S: SparseTensor) -> Tensor:
    """Where S has an entry, as a mask of its shape."""
    values = torch.ones(S.values().shape, dtype=torch.int64)
    return SparseTensor(S.pattern, values, batch_dims=S.batch_dims).to_dense().bool()


def of_torch(name: str) -> Any:
    if name in KEEPS_ZERO_NN:
        return getattr(F, name)
    for home in (Tensor, torch, F, torch.special, torch.linalg, torch.sparse):
        if callable(found := getattr(home, name, None)):
            return found
    return None


def check(got: Any, want: Any) -> None:
    """Equal numbers in the same shape; sequences one by one."""
    if isinstance(want, list | tuple) and not isinstance(want, torch.Size):
        if len(got) != len(want):
            raise Unlike(f"{len(got)} results, not {len(want)}")
        for a, b in zip(got, want, strict=True):
            check(a, b)
        return
    if isinstance(got, Pattern):  # its places in the order in which they were given
        got = got.indices()
    if not isinstance(want, Tensor):
        if got != want and not (got != got and want != want):
            raise Unlike(f"{got!r}, not {want!r}")
        return
    if not isinstance(got, Tensor | SparseTensor):
        raise Unlike(f"a {type(got).__name__}, not a tensor")
    made = dense(got)
    low = any(x.dtype in (torch.bfloat16, torch.float16) for x in (made, want))
    close = {"atol": 0.1, "rtol": 0.05} if low else {"atol": 1e-4, "rtol": 1e-4}
    if want.is_complex() and not made.is_complex():
        raise Unlike(f"{made.dtype}, not {want.dtype}")
    try:
        torch.testing.assert_close(made, want.to(made.dtype), equal_nan=True, **close)
    except AssertionError as error:
        raise Unlike(str(error)) from error


# At the stored entries only: what is not stored meets no divisor.
def _at_stored(f: Oracle) -> Oracle:
    def want(S: SparseTensor, *args: Any, **options: Any) -> Any:
        full = f(dense(S), *(dense(a) for a in args), **options)
        return torch.where(stored(S), full, torch.zeros_like(full))

    return want


def _softmax(log: bool) -> Oracle:
    def want(S: SparseTensor, dim: int, dtype: Any = None) -> Any:
        there = stored(S)
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise TypeError(dtype)
        X = dense(S) if dtype is None else dense(S).to(dtype)
        kind = X.dtype
        if not kind.is_floating_point:
            raise TypeError(kind)
        e = torch.where(there, X, -torch.inf).double()
        full = (torch.log_softmax if log else torch.softmax)(e, dim)
        return torch.where(there, full, torch.zeros_like(full)).to(kind)

    return want


def _gathered(reduce: str, terms: Tensor, there: Tensor, dim: int) -> Tensor:
    """terms reduced along dim over the places that are there; nothing there is 0."""
    if reduce in ("sum", "mean"):
        total = torch.where(there, terms, torch.zeros_like(terms)).sum(dim)
        return total if reduce == "sum" else total / there.sum(dim).clamp(min=1)
    worst = -torch.inf if reduce == "max" else torch.inf
    full = torch.where(there, terms.double(), worst)
    found = full.amax(dim) if reduce == "max" else full.amin(dim)
    return torch.where(there.any(dim), found, 0).to(terms.dtype)


def _aggregate(S: SparseTensor, reduce: str = "sum", dim: int = 1) -> Any:
    b = S.batch_dims
    d = range(S.ndim)[dim]
    if reduce not in ("sum", "mean", "max", "min") or not b <= d < b + S.pattern.ndim:
        raise ValueError(reduce)
    if S.is_complex() and reduce in ("max", "min"):
        raise ValueError(reduce)
    return _gathered(reduce, dense(S), stored(S), dim)


def _propagate(S: SparseTensor, X: Tensor, reduce: str = "sum") -> Any:
    if reduce == "sum":
        return dense(S) @ X
    if reduce not in ("mean", "max", "min") or S.batch_dims or S.dense_dim() or S.ndim != 2:
        raise ValueError(reduce)
    if S.is_complex() and reduce != "mean":
        raise ValueError(reduce)
    terms = dense(S)[:, :, None] * X[None]
    return _gathered(reduce, terms, stored(S)[:, :, None].expand_as(terms), 1)


def _sparse_mask(X: Any, S: SparseTensor) -> Any:
    full = dense(X).expand(S.shape) if dense(X).shape != S.shape else dense(X)
    return torch.where(stored(S), full, torch.zeros_like(full))


def _sampled(S: SparseTensor, A: Tensor, B: Tensor) -> Any:
    full = A @ B
    there = stored(S)
    return torch.where(there, full, torch.zeros_like(full)) + dense(S)


def _batches(S: Any, X: Any, **options: Any) -> Tensor:
    """torch's takes batches of one number; ours broadcasts them, as matmul does."""
    if options or dense(S).dim() != 3 or getattr(X, "ndim", 0) != 3:
        return torch.bmm(dense(S), dense(X), **options)
    return dense(S) @ dense(X)


def _reverse(f: Oracle) -> Oracle:
    return lambda S, other: f(dense(other), dense(S))


def _solve(S: SparseTensor, b: Tensor) -> Any:
    full = dense(S)
    if torch.linalg.matrix_rank(full) < full.shape[0]:
        raise RuntimeError("singular")
    return torch.linalg.solve(full, b)


def _topk(S: SparseTensor, *args: Any) -> Any:
    return torch.topk(dense(S), *args).values


def _first(S: SparseTensor, name: str, *args: Any) -> Any:
    return getattr(torch, name)(dense(S), *(dense(a) for a in args))


def _kept(S: SparseTensor) -> Any:
    return dense(S)


def _layout(S: SparseTensor) -> Any:
    return dense(S)


def _compressed(S: SparseTensor, dense_dim: int | None = None) -> Any:
    if dense_dim is not None and (not isinstance(dense_dim, int) or dense_dim != S.dense_dim()):
        raise TypeError(dense_dim)
    return dense(S)


def _blocks(S: SparseTensor, blocksize: tuple[int, int], dense_dim: int | None = None) -> Any:
    if any(n <= 0 for n in blocksize) or len(blocksize) != 2:
        raise ValueError(blocksize)
    if any(n % b for n, b in zip(S.pattern.size, blocksize, strict=False)):
        raise ValueError("blocks that don't fill the matrix")
    return _compressed(S, dense_dim)


def _scipy(S: SparseTensor, layout: str = "csr") -> Any:
    if layout not in ("csr", "csc", "coo", "lil", "dok", "bsr", "dia") or (S.ndim > 2 and layout != "coo"):
        raise ValueError(layout)
    return dense(S)


def _split(name: str) -> Oracle:
    return lambda S, *args: tuple(getattr(dense(S), name)(*args))


def _edges(S: SparseTensor) -> Any:
    return S.pattern.indices(), S.values()


def _clamped(S: SparseTensor, low: Any = None, high: Any = None) -> Any:
    return torch.clamp(dense(S), low, high)


ORACLES: dict[str, Oracle] = {
    **{
        n: _at_stored(getattr(torch, n))
        for n in ("div", "divide", "true_divide", "floor_divide", "remainder", "fmod")
    },
    "__truediv__": _at_stored(torch.true_divide),
    "__div__": _at_stored(torch.true_divide),
    "__floordiv__": _at_stored(torch.floor_divide),
    "__mod__": _at_stored(torch.remainder),
    "softmax": _softmax(False),
    "log_softmax": _softmax(True),
    "aggregate": _aggregate,
    "propagate": _propagate,
    "sparse_mask": _sparse_mask,
    "sampled_addmm": _sampled,
    "spsolve": _solve,
    "solve": _solve,
    "topk": _topk,
    "__rmatmul__": _reverse(torch.matmul),
    "__radd__": _reverse(torch.add),
    "__rsub__": _reverse(torch.sub),
    "rsub": _reverse(torch.sub),
    "__rmul__": _reverse(torch.mul),
    "bmm": _batches,
    "smm": lambda S, X: dense(S) @ dense(X),
    "hspmm": lambda S, X: dense(S) @ dense(X),
    "tolist": lambda S: dense(S).tolist(),
    "item": lambda S: dense(S).item(),
    "equal": lambda S, other: (
        torch.equal(dense(S), dense(other)) if isinstance(other, Tensor | SparseTensor) else False
    ),
    "split": _split("split"),
    "chunk": _split("chunk"),
    "unbind": _split("unbind"),
    "sparsify": _kept,
    "unbatch": _kept,
    "share_memory_": _kept,
    "to_sparse": _layout,
    "to_torch": _layout,
    "to_sparse_coo": _layout,
    "to_sparse_csr": _compressed,
    "to_sparse_csc": _compressed,
    "to_sparse_bsr": _blocks,
    "to_sparse_bsc": _blocks,
    "to_scipy": _scipy,
    "to_edge_index": _edges,
    "nonzero": lambda S, **options: torch.nonzero(dense(S), **options),
    "type": lambda S, dtype: dense(S).to(dtype),
    "kron": lambda S, other: torch.kron(dense(S).contiguous(), dense(other).contiguous()),
    "view": lambda S, *shape: dense(S).reshape(*shape),
    "view_as": lambda S, other: dense(S).reshape_as(dense(other)),
    "where": lambda S, *args: torch.where(dense(args[0]), dense(S), *(dense(a) for a in args[1:])),
    "prod": lambda S, *args: _prod(S, *args),
    "threshold": lambda S, *args: F.threshold(dense(S), *args),  # torch's own of this name has no `inplace`
    "squeeze": lambda S, *dims: _squeezed(S, *dims),
}


def _prod(S: SparseTensor, *args: Any) -> Any:
    """Several dimensions too, one after the other; None means all of them, as it does for sum."""
    if args == (None,) or args == (None, False):
        return torch.prod(dense(S))
    if args == (None, True):
        return torch.prod(dense(S)).reshape([1] * S.ndim)
    if not args or not isinstance(args[0], tuple):
        return torch.prod(dense(S), *args)
    if not args[0]:
        return torch.prod(dense(S))
    X = dense(S)
    for d in sorted({range(X.dim())[d] for d in args[0]}, reverse=True):
        X = X.prod(d)
    if len({range(S.ndim)[d] for d in args[0]}) != len(args[0]) or args[1:]:
        raise ValueError("dimensions")
    return X


def _squeezed(S: SparseTensor, *dims: Any) -> Any:
    """The last sparse dimension stays: a sparse tensor has at least one."""
    full = dense(S).squeeze(*dims)
    return full.squeeze() if set(S.pattern.size) == {1} else full


def tidy(name: str, got: Any) -> Any:
    """What of an answer its oracle speaks of."""
    if name == "squeeze" and isinstance(got, SparseTensor) and set(got.pattern.size) == {1}:
        return dense(got).squeeze()
    if name == "topk":
        return got.values
    if name == "to_scipy":
        return torch.from_numpy(got.toarray())
    if name.startswith("to_sparse") or name == "to_torch":
        return got.to_dense() if isinstance(got, Tensor) else got
    if name in ("max", "min", "aminmax") and isinstance(got, tuple):
        return tuple(got)
    return got


def random_ones(name: str, S: SparseTensor, args: list[Any], got: Any) -> None:
    """Random or empty by nature: the shape, the pattern, and the numbers that are possible."""
    if not isinstance(got, SparseTensor) or got.shape != S.shape or got.pattern != S.pattern:
        raise Unlike(f"{name} changed the shape or the places")
    if name == "dropout":
        p = args[0] if args else 0.5
        on = args[1] if len(args) > 1 else True
        v, w = S.values(), got.values()
        kept = v / (1 - p) if on and p < 1 else v * (0 if on else 1)
        possible = (w == 0) | torch.isclose(
            w.to(torch.complex128), kept.to(torch.complex128), atol=0.05, rtol=0.05
        )
        if not bool(possible.all()):
            raise Unlike(f"dropout gave {w} of {v}")


RANDOM = {"dropout", "empty_like", "rrelu"}


def same_object_rules(S: SparseTensor) -> None:
    """What holds of every tensor, whatever it was made from."""
    again: list[Any] = [copy.deepcopy(S), copy.copy(S)]
    for made in again:
        check(made, dense(S))
        if made.pattern != S.pattern or made.batch_dims != S.batch_dims:
            raise Unlike("a copy has other places")
    if not isinstance(repr(S), str) or len(S) != dense(S).shape[0]:
        raise Unlike("repr or len")
    if S.pattern.ndim == 2:
        S.spy()
        ptr, cols = S.coalesce().crow_indices(), S.col_indices()
        if int(ptr[-1]) != S.nnz or cols.shape[0] != S.nnz:
            raise Unlike("row pointers")
    full = S.pattern
    places = full.canonical()
    if (full | full) != places or (full & full) != places or (full - full).nnz != 0:
        raise Unlike("a pattern as a set")
    if full.nnz and not bool(full.contains(full.indices()).all()):
        raise Unlike("contains")
    if Pattern(full.indices(), full.size) != full or Pattern.from_keys(full.keys(), full.size) != full:
        raise Unlike("a pattern made again")
    if full.numel - full.nnz >= 1 and ((full.missing(1)) & full).nnz:
        raise Unlike("missing() drew a place that is there")
