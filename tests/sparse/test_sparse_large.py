"""Many entries take the kernels' road: the same numbers as the road of a few."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradmend.sparse import Pattern, SparseTensor
from gradmend.sparse.autograd import segment
from gradmend.sparse.kernels.gate import SMALL

P = Pattern.random((300, 400), nnz=70_000, generator=torch.Generator().manual_seed(0))
V = torch.randn(P.nnz, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

OPS: dict[str, Any] = {
    "sum(0)": lambda S: S.sum(0),
    "sum(1)": lambda S: S.sum(1),
    "softmax(0)": lambda S: S.softmax(0).values(),
    "softmax(1)": lambda S: S.softmax(1).values(),
    "log_softmax(1)": lambda S: S.log_softmax(1).values(),
    "log_softmax(0)": lambda S: S.log_softmax(0).values(),
    "amax(0)": lambda S: S.amax(0),
    "amin(1)": lambda S: S.amin(1),
    "max(1)": lambda S: S.max(1)[0],
    "logsumexp(0)": lambda S: S.logsumexp(0),
    "var(1)": lambda S: S.var(1),
    "norm(2, 0)": lambda S: S.norm(2, 0),
}


@pytest.mark.parametrize("name", OPS)
def test_both_roads_agree_thrice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[Tensor]:
        v = V.clone().requires_grad_()
        out = OPS[name](SparseTensor(P, v))
        weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64)
        (first,) = torch.autograd.grad((out.sin() * weight).sum(), v, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), v)
        with torch.no_grad():
            bare = OPS[name](SparseTensor(P, V))
        return [out, bare, first, second]

    assert segment.by_kernel(V) and V.numel() > SMALL
    fast = run()
    monkeypatch.setattr(segment, "_FEW", 10**9)
    assert not segment.by_kernel(V)
    for a, b in zip(fast, run(), strict=True):
        torch.testing.assert_close(a, b)
