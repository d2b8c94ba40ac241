"""Operands of all kinds, right and wrong, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from sparse_guards import guarded
from torch import Tensor

from gradmend.sparse import SparseTensor

# Of two sparse tensors, entry by entry.
UNION = (
    *(
        "__or__",
        "__xor__",
        "__and__",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_and",
        "atan2",
        "fmax",
        "fmin",
        "hypot",
    ),
    *(
        "logical_or",
        "logical_xor",
        "logical_and",
        "maximum",
        "minimum",
        "add",
        "sub",
        "mul",
        "__add__",
        "__sub__",
    ),
    *("__mul__", "ne", "gt", "lt", "__ne__", "__gt__", "__lt__"),
)


class Maker:
    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.g = torch.Generator().manual_seed(seed)
        self.dtype = self.r.choice(
            [torch.float32] * 3 + [torch.float64] * 3 + [torch.bfloat16, torch.int64, torch.complex64]
        )

    def numbers(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        kind = dtype or self.dtype
        return guarded(torch.randint(-3, 4, shape, generator=self.g).to(kind))

    def strided(self, x: Tensor) -> Tensor:
        """The same shape with other strides: turned, every second one, overlapping, expanded."""
        how = self.r.randrange(6)
        if how == 0 and x.dim() > 1:
            return guarded(x.transpose(0, -1)).transpose(0, -1)
        if how == 1 and x.dim():
            return guarded(torch.stack([x, x], -1))[..., 0]
        if how == 2 and x.dim() and x.shape[0]:
            return x[:1].expand(x.shape)
        if how == 3 and x.dim() == 2 and x.numel():
            return guarded(self.numbers(sum(x.shape) - 1)).as_strided(x.shape, (1, 1))
        return x

    def shape(self) -> tuple[int, ...]:
        return tuple(self.r.choice([0, 1, 1, 2, 3, 4, 5, 9]) for _ in range(self.r.randrange(5)))

    def sparse(self, size: tuple[int, ...] | None = None, dtype: torch.dtype | None = None) -> SparseTensor:
        plain = size is not None
        if size is None:
            size = tuple(self.r.choice([1, 2, 3, 4, 6, 17]) for _ in range(self.r.choice([1, 2, 2, 2, 2, 3])))
        n = self.r.randrange(0, 14)
        index = torch.stack([torch.randint(max(m, 1), (n,), generator=self.g) for m in size])
        if 0 in size:
            index = index[:, :0]
        batch = 0 if plain else self.r.choice([0, 0, 0, 1, 2])
        tail = () if plain else self.r.choice([(), (), (), (2,)])
        lead = tuple(self.r.choice([1, 2, 3]) for _ in range(batch))
        if self.r.random() < 0.5:
            index = torch.unique(index, dim=1) if index.numel() else index
        return SparseTensor.from_coo(
            index, self.numbers(*lead, index.shape[1], *tail, dtype=dtype), size, batch_dims=batch
        )

    def square(self, n: int) -> SparseTensor:
        """Not singular: a whole diagonal larger than the rest."""
        place = torch.arange(n)
        index = torch.cat([torch.stack([place, place]), torch.randint(n, (2, n), generator=self.g)], 1)
        kind = self.dtype if self.dtype in (torch.float32, torch.float64, torch.complex64) else torch.float64
        numbers = torch.cat([torch.full((n,), 4.0 * n), torch.randint(-2, 3, (n,), generator=self.g).float()])
        return SparseTensor.from_coo(index, numbers.to(kind), (n, n))

    def argument(self, S: SparseTensor) -> Any:
        shape, r = tuple(S.shape), self.r
        makers: list[Callable[[], Any]] = [
            lambda: r.randint(-4, 5),
            lambda: r.choice([0, 1, -1]),
            lambda: r.choice([0.5, -1.5, 2.0, True, None, "sum", "max", 10**12]),
            lambda: tuple(r.randint(-3, 4) for _ in range(r.randrange(4))),
            lambda: self.strided(self.numbers(*shape)),
            lambda: self.strided(self.numbers(*shape[-1:], r.choice([1, 3, 7, 20]))),
            lambda: self.strided(self.numbers(*shape[:-2], *shape[-1:], r.choice([1, 2, 5]))),
            lambda: self.strided(self.numbers(*(r.choice([1, n]) for n in shape))),
            lambda: self.strided(self.numbers(*self.shape())),
            lambda: self.sparse(shape) if len(shape) <= 4 and shape else self.sparse(),
            lambda: self.sparse(),
            lambda: S.t() if S.ndim == 2 else S,
            lambda: torch.randint(-3, 9, (r.randrange(4),), generator=self.g),
            lambda: torch.randint(0, 2, shape[:1] or (1,), generator=self.g).bool(),
            lambda: torch.randint(0, 2, shape, generator=self.g).bool(),
            lambda: torch.tensor(r.choice([-1, 0, 2, 2**62])),
        ]
        return r.choice(makers)()

    def _indices(self, S: SparseTensor) -> list[Any]:
        """What one writes between brackets."""
        r, n = self.r, S.shape[0] or 1
        i = r.randrange(-n, n)
        some = torch.randint(-n, n, (3,), generator=self.g)
        slices = [slice(None), slice(1, None), slice(None, -1), slice(0, 3, 2), slice(5, 1)]
        return [
            i,
            some,
            some.tolist(),
            r.choice(slices),
            (r.choice(slices),) * S.ndim,
            (..., r.choice(slices)),
            (None, i),
            (i, ...),
            (..., None),
            tuple(torch.randint(m or 1, (4,), generator=self.g) for m in S.shape),
            tuple(r.randrange(m or 1) for m in S.shape),
            torch.randint(0, 2, (S.shape[0],), generator=self.g).bool(),
            torch.randint(0, 2, tuple(S.shape), generator=self.g).bool(),
            S != 0,
        ]

    def fitting(self, name: str, S: SparseTensor) -> list[Any] | None:
        """Arguments that a name can use, where random ones hardly ever are: half of its calls get these."""
        r, shape = self.r, tuple(S.shape)
        dim = r.randrange(-S.ndim, S.ndim)
        inner = shape[-1]
        made: dict[str, Callable[[], list[Any]]] = {
            "softmax": lambda: [dim],
            "log_softmax": lambda: [dim],
            "propagate": lambda: [
                self.strided(self.numbers(inner, 3)),
                r.choice(["sum", "mean", "max", "min"]),
            ],
            "aggregate": lambda: [r.choice(["sum", "mean", "max", "min"]), dim],
            "sparse_mask": lambda: [self.sparse(shape)],
            "sampled_addmm": lambda: [
                self.numbers(*shape[:-2], *shape[-2:-1], 4),
                self.numbers(*shape[:-2], 4, inner),
            ],
            "dropout": lambda: [r.choice([0.0, 0.5, 1.0]), r.choice([True, False])],
            "topk": lambda: [r.randrange(0, shape[dim] + 1), dim, r.choice([True, False])],
            "gather": lambda: [dim, torch.randint(shape[dim] or 1, shape, generator=self.g)],
            "split": lambda: [r.randrange(1, 4), dim],
            "chunk": lambda: [r.randrange(1, 4), dim],
            "where": lambda: [S.abs() if not S.is_complex() else S, r.choice([0, S])],
            "to_sparse_bsr": lambda: [(1, 1)],
            "to_sparse_bsc": lambda: [(1, 1)],
            "masked_select": lambda: [torch.randint(0, 2, shape, generator=self.g).bool()],
            "index_select": lambda: [dim, torch.randint(shape[dim] or 1, (3,), generator=self.g)],
            "narrow": lambda: [dim, r.randrange(shape[dim] or 1), 1],
            "vector_norm": lambda: [r.choice([0, 1, 2, 3, float("inf"), -1, -2, 0.5]), r.choice([dim, None])],
            "norm": lambda: [r.choice([0, 1, 2, 3, float("inf")]), r.choice([dim, None])],
            "matrix_norm": lambda: [r.choice(["fro", 1, -1, float("inf"), -float("inf")])],
            "unflatten": lambda: [dim, (1, shape[dim])],
        }
        same, whole = (lambda: [self.sparse(shape)] if shape else [S]), r.randrange(4)
        made |= dict.fromkeys(UNION, same)
        made |= {
            "dot": lambda: [self.numbers(inner) if S.ndim == 1 else self.argument(S)],
            "mm": lambda: [self.strided(self.numbers(inner, r.choice([1, 5, 9])))],
            "mv": lambda: [self.strided(self.numbers(inner))],
            "bmm": lambda: [self.numbers(*shape[:-2], inner, 3)],
            "expand": lambda: [(2, *(r.choice([-1, n]) for n in shape))],
            "broadcast_to": lambda: [(3, *shape)],
            "repeat": lambda: [tuple(r.choice([1, 2, 0]) for _ in range(S.ndim + r.randrange(2)))],
            "permute": lambda: [tuple(r.sample(range(S.ndim), S.ndim))],
            "movedim": lambda: [dim, r.randrange(S.ndim)],
            "moveaxis": lambda: [dim, r.randrange(S.ndim)],
            "transpose": lambda: [dim, r.randrange(S.ndim)],
            "swapaxes": lambda: [dim, r.randrange(S.ndim)],
            "swapdims": lambda: [dim, r.randrange(S.ndim)],
            "select": lambda: [dim, r.randrange(shape[dim] or 1)],
            "narrow_copy": lambda: [dim, r.randrange(shape[dim] or 1), 1],
            "outer": lambda: [self.sparse((r.choice([1, 4]),))],
            "ger": lambda: [self.numbers(r.choice([1, 4]))],
            "threshold": lambda: [r.choice([-1.0, 0.5]), 0],
            "masked_fill": lambda: [torch.randint(0, 2, shape, generator=self.g).bool(), 0],
            "where": lambda: [torch.randint(0, 2, shape, generator=self.g).bool(), r.choice([0, S])],
            "type": lambda: [r.choice([torch.float64, torch.int64])],
            "diagonal": lambda: [whole - 2, *([S.batch_dims, S.batch_dims + 1] if S.ndim > 2 else [])],
            "tril": lambda: [whole - 2],
            "triu": lambda: [whole - 2],
            "roll": lambda: [whole, dim],
            "flip": lambda: [dim],
            "tile": lambda: [(2, 1)],
            "unsqueeze": lambda: [dim],
            "reshape": lambda: [(-1,)],
            "view": lambda: [(-1, *shape[1:])],
            "flatten": list,
            "kron": lambda: [self.sparse((2, 2))],
            "pow": lambda: [r.choice([2, 3, 0.5])],
            "clamp": lambda: [r.choice([-1, None, 0]), r.choice([1, 2.0])],
            "__getitem__": lambda: [r.choice(self._indices(S))],
            "propagate": lambda: [
                self.strided(self.numbers(inner, 3)),
                r.choice(["sum", "mean", "max", "min"]),
            ],
            "logsumexp": lambda: [dim],
            "allclose": lambda: [S * 1],
            "equal": lambda: [r.choice([S * 1, S])],
            "count_nonzero": lambda: [dim],
        }
        if name in made:
            return made[name]()
        if name in (
            "max",
            "min",
            "argmax",
            "argmin",
            "var",
            "std",
            "unbind",
            "cumsum",
            "squeeze",
            "prod",
            "sum",
        ):
            return [dim]
        return None
