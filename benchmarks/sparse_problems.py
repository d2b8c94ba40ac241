"""The rows of the sparse benchmark: what is multiplied, summed and normalised, and how little could be moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass
class Problem:
    """One pattern with values, a dense operand, and the gradient that backward starts from."""

    name: str
    kind: str  # which peers take part
    rows: int
    cols: int
    index: Tensor  # [2, nnz], sorted by rows, each place once
    values: Tensor
    X: Tensor | None = None
    G: Tensor | None = None
    batch: int = 1
    extra: dict[str, Tensor] = field(default_factory=dict)

    @property
    def nnz(self) -> int:
        return self.index.shape[1]

    @cached_property
    def terms(self) -> int:
        """Of a product of two sparse matrices: pairs of entries, about as many as its result has."""
        per_row = torch.bincount(self.extra["other"][0], minlength=self.cols)
        return int(per_row[self.col].sum())

    @cached_property
    def crow(self) -> Tensor:
        return torch._convert_indices_from_coo_to_csr(self.index[0], self.rows)

    @property
    def col(self) -> Tensor:
        return self.index[1]

    @property
    def size(self) -> tuple[int, int]:
        return (self.rows, self.cols)

    def mask(self) -> Tensor:
        dense = torch.zeros(self.size)
        dense[self.index[0], self.index[1]] = self.values
        return dense

    @property
    def results_bytes(self) -> int:
        """The result and the gradients: what every way of doing it has to allocate."""
        if (
            self.kind in ("product", "linear", "batched", "sddmm")
            and self.X is not None
            and self.G is not None
        ):
            return 4 * (self.G.numel() + self.X.numel() + self.values.numel())
        if self.kind == "sum":
            return 4 * (self.cols + self.nnz)
        if self.kind == "spsp":
            return 4 * (self.terms + 2 * self.nnz) + 16 * self.terms  # places of the result too
        return 8 * self.nnz

    @property
    def least_bytes(self) -> int:
        """Each operand read once a pass and each result written once, index and values included."""
        nnz = self.nnz * self.batch
        if self.kind in ("product", "linear", "batched") and self.X is not None and self.G is not None:
            dense = 4 * (self.X.numel() + self.G.numel())
            forward = nnz * 4 + self.nnz * 8 + dense
            backward = nnz * 8 + self.nnz * 16 + dense + 4 * self.X.numel()
            return forward + backward
        if self.kind == "sddmm" and self.X is not None:
            dense = 4 * (self.X.numel() + self.values.numel())
            return 3 * dense + self.nnz * 8 * 3 + nnz * 4 * 3
        if self.kind.startswith("spsp"):
            forward = 12 * (self.nnz + self.terms) + 4 * self.terms
            return forward if self.kind == "spsp_forward" else 2 * forward + 8 * self.nnz
        if self.kind == "sum":
            return self.nnz * (4 + 8 + 4 + 8) + 8 * self.cols
        if self.kind in ("plus", "cat"):  # places and values, read and written
            return 2 * 20 * 2 * self.nnz
        if self.kind in ("times", "rows"):  # few of them are written
            return 20 * (2 if self.kind == "times" else 1) * self.nnz
        return self.nnz * 4 * 5  # read, write; read two, write


def power_law(n: int, entries: int, seed: int = 0) -> Tensor:
    """A graph with few hubs and many leaves, as citation graphs are: [2, nnz], sorted, no place twice."""
    rng = np.random.default_rng(seed)
    weight = np.arange(1, n + 1) ** -0.6
    reach = np.cumsum(weight / weight.sum())

    def ends() -> np.ndarray:
        return rng.permutation(n)[np.searchsorted(reach, rng.random(entries)).clip(max=n - 1)]

    key = np.unique(ends().astype(np.int64) * n + ends())
    return torch.from_numpy(np.stack([key // n, key % n]))


def uniform(rows: int, cols: int, entries: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    key = np.unique(rng.integers(0, rows * cols, entries))
    return torch.from_numpy(np.stack([key // cols, key % cols]))


def _graph(k: int, n: int = 169_343, entries: int = 2_315_598) -> Problem:
    index = power_law(n, entries)
    v, X, G = torch.randn(index.shape[1]), torch.randn(n, k), torch.randn(n, k)
    return Problem(f"graph k={k}", "product", n, n, index, v, X, G)


def _square(n: int, entries: int, k: int) -> Problem:
    index = uniform(n, n, entries)
    v, X, G = torch.randn(index.shape[1]), torch.randn(n, k), torch.randn(n, k)
    return Problem(f"{n // 1000}k x {n // 1000}k k={k}", "product", n, n, index, v, X, G)


def _linear(percent: int, n: int = 4096, batch: int = 128) -> Problem:
    index = uniform(n, n, n * n * percent // 100)
    v, X, G = torch.randn(index.shape[1]) / 64, torch.randn(batch, n), torch.randn(batch, n)
    return Problem(f"linear {percent}%", "linear", n, n, index, v, X, G)


def _batched(batch: int = 16, n: int = 2048, entries: int = 40_000, k: int = 32) -> Problem:
    index = uniform(n, n, entries)
    v = torch.randn(batch, index.shape[1])
    X, G = torch.randn(batch, n, k), torch.randn(batch, n, k)
    return Problem("batched 16 x 2048", "batched", n, n, index, v, X, G, batch)


def _heads(batch: int = 8, n: int = 2048, entries: int = 100_000, k: int = 32) -> Problem:
    """Attention's scores: `values` are the queries, X the keys, of each head."""
    index = uniform(n, n, entries)
    Q, K, G = torch.randn(batch, n, k), torch.randn(batch, n, k), torch.randn(batch, index.shape[1])
    return Problem("sddmm, 8 heads", "sddmm", n, n, index, Q, K, G, batch)


def _entries(name: str, kind: str) -> Problem:
    n = 169_343
    index = power_law(n, 2_315_598)
    p = Problem(name, kind, n, n, index, torch.randn(index.shape[1]))
    p.extra["row"] = torch.randn(1, n)
    p.G = torch.randn(n) if kind == "sum" else torch.randn(index.shape[1])
    return p


def _products(kind: str, n: int = 50_000, entries: int = 500_000) -> Problem:
    index, other = uniform(n, n, entries), uniform(n, n, entries, seed=1)
    p = Problem(
        f"sparse @ sparse{', forward' if 'forward' in kind else ''}",
        kind,
        n,
        n,
        index,
        torch.randn(index.shape[1]),
    )
    p.extra = {"other": other, "values": torch.randn(other.shape[1])}
    return p


def _pair(name: str, kind: str, n: int = 20_000, entries: int = 400_000) -> Problem:
    """Two matrices of other places, entry by entry, or rows of one; forward."""
    p = _products(kind, n, entries)
    p.name = f"{name}, forward"
    p.extra["rows"] = torch.randint(n, (n // 4,), generator=torch.Generator().manual_seed(0))
    return p


def _tiny(kind: str) -> Problem:
    index = uniform(20, 20, 120)[:, :100]
    v, X, G = torch.randn(index.shape[1]), torch.randn(20, 8), torch.randn(20, 8)
    return Problem(f"{kind.replace('_', ' ')}, 100 entries", kind, 20, 20, index, v, X, G)


PROBLEMS = {
    "graph1": lambda: _graph(1),
    "graph7": lambda: _graph(7),
    "graph16": lambda: _graph(16),
    "graph47": lambda: _graph(47),
    "graph64": lambda: _graph(64),
    "graph128": lambda: _graph(128),
    "square": lambda: _square(20_000, 200_000, 64),
    "linear10": lambda: _linear(10),
    "linear5": lambda: _linear(5),
    "linear1": lambda: _linear(1),
    "batched": _batched,
    "sddmm": _heads,
    "sum": lambda: _entries("sum(0)", "sum"),
    "softmax": lambda: _entries("softmax(1)", "softmax"),
    "elementwise": lambda: _entries("tanh", "elementwise"),
    "spsp_forward": lambda: _products("spsp_forward"),
    "spsp": lambda: _products("spsp"),
    "plus": lambda: _pair("S + T of other places", "plus"),
    "times": lambda: _pair("S * T of other places", "times"),
    "rows": lambda: _pair("S[idx]", "rows"),
    "cat": lambda: _pair("cat", "cat"),
    "tiny_forward": lambda: _tiny("tiny_forward"),
    "tiny_step": lambda: _tiny("tiny_step"),
    "tiny_softmax": lambda: _tiny("tiny_softmax"),
    "tiny_sum": lambda: _tiny("tiny_sum"),
    "tiny_dense": lambda: _tiny("tiny_dense"),
    "tiny_sparse": lambda: _tiny("tiny_sparse"),
}
