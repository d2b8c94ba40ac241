"""Merged lists and runs, compiled and by torch's ops, against sets; what is built on them, against dense."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradmend.sparse import Pattern, SparseTensor
from gradmend.sparse.kernels import memory, merging
from gradmend.sparse.places import linear, unlinear

SIZE = (7, 9)
keys = st.lists(st.integers(0, 62), unique=True).map(lambda x: torch.tensor(sorted(x), dtype=torch.int64))


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(merging, "available", lambda: False)
    else:
        monkeypatch.setattr(merging, "_FEW", 0)
    return str(request.param)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(keys, keys)
def test_unions_and_intersections_are_those_of_sets(a: Tensor, b: Tensor) -> None:
    index, left, right = merging.union(a, b, unlinear(a, SIZE), unlinear(b, SIZE))
    whole = linear(index, SIZE)
    assert whole.tolist() == sorted({*a.tolist(), *b.tolist()})
    assert torch.equal(whole[left], a) and torch.equal(whole[right], b)
    left, right = merging.intersection(a, b)
    assert a[left].tolist() == b[right].tolist() == sorted({*a.tolist()} & {*b.tolist()})


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5))))
def test_runs_are_written_out(given: list[tuple[int, int]]) -> None:
    first, count = torch.tensor(given, dtype=torch.int64).reshape(-1, 2).unbind(1)
    which, entry = merging.runs(first, count)
    want = [(i, f + j) for i, (f, n) in enumerate(given) for j in range(n)]
    assert list(zip(which.tolist(), entry.tolist(), strict=True)) == want


def pair(n: int = 200, entries: int = 4000) -> tuple[SparseTensor, SparseTensor]:
    g = torch.Generator().manual_seed(0)
    made = [Pattern.random((n, n), nnz=entries, generator=g) for _ in range(2)]
    S, T = (
        SparseTensor(p, torch.randn(entries, dtype=torch.float64, generator=g).requires_grad_()) for p in made
    )
    return S, T


def gradients(out: Any, S: SparseTensor, T: SparseTensor) -> tuple[Tensor, ...]:
    dense = out if isinstance(out, Tensor) else out.to_dense()
    weight = torch.linspace(-1, 1, dense.numel(), dtype=dense.dtype).view(dense.shape)
    found = torch.autograd.grad((dense * weight).sum(), (S.values(), T.values()), allow_unused=True)
    return dense, *[torch.zeros(1) if g is None else g for g in found]


IDS = torch.tensor([5, 0, 199, 5, -1, 7])
OPERATIONS = {
    "S + T": lambda S, T: S + T,
    "S - T": lambda S, T: S - T,
    "S * T": lambda S, T: S * T,
    "maximum": torch.maximum,
    "S[ids]": lambda S, T: S[IDS],
    "S[:, ids]": lambda S, T: S[:, IDS],
    "cat": lambda S, T: torch.cat([S, T, S]),
    "cat beside": lambda S, T: torch.cat([S, T], 1),
    "cat of three beside": lambda S, T: torch.cat([S, T, S], 1),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_equal_dense_each_time(name: str) -> None:
    S, T = pair()
    want = gradients(OPERATIONS[name](S.to_dense(), T.to_dense()), S, T)
    for _ in range(2):  # the second time by the plan that was kept
        for got, dense in zip(gradients(OPERATIONS[name](S, T), S, T), want, strict=True):
            torch.testing.assert_close(got, dense)


def test_a_kept_plan_is_of_its_two_patterns() -> None:
    S, T = pair()
    U = pair(entries=3000)[1]
    for other in (T, U, T):
        torch.testing.assert_close((S + other).to_dense(), S.to_dense() + other.to_dense())
        torch.testing.assert_close((S * other).to_dense(), S.to_dense() * other.to_dense())
    assert (S + T).pattern is (S + T).pattern


class Largest(TorchDispatchMode):
    """The longest result of any operation."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, Tensor):
                self.numbers = max(self.numbers, t.numel())
        return out


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_messages_are_reduced_a_part_at_a_time(reduce: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradmend.sparse.ops.products import message

    S, _ = pair(n=100)
    values, k = S.values(), 40
    X = torch.randn(100, k, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    X[3, 2] = torch.nan
    X.requires_grad_()
    whole = message._largest(values, X, S._pattern, reduce == "max")
    monkeypatch.setattr(message, "_MOST", 1 << 10)
    with Largest() as seen:
        out = S.propagate(X, reduce)
        out.nan_to_num().square().sum().backward()
    assert seen.numbers < S.nnz * k / 4
    got, want = (X.grad, values.grad), torch.autograd.grad(whole.nan_to_num().square().sum(), (X, values))
    assert torch.equal(out.detach().nan_to_num(7), whole.detach().nan_to_num(7))
    for g, h in zip(got, want, strict=True):
        torch.testing.assert_close(g, h, equal_nan=True)
    sent = S.detach().to_dense()[:, :, None] * X.detach()
    hidden = sent.masked_fill(
        (S.detach().to_dense() == 0)[:, :, None], -torch.inf if reduce == "max" else torch.inf
    )
    dense = hidden.amax(1) if reduce == "max" else hidden.amin(1)
    torch.testing.assert_close(out.detach(), dense.masked_fill(dense.isinf(), 0), equal_nan=True)


def test_lazy_zeros_begin_with_a_cache_line() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64):
        made = memory.zeros((1000, 3), dtype)
        assert made.shape == (1000, 3) and made.dtype == dtype and made.is_contiguous() and not made.any()
        assert made.data_ptr() % 64 == 0
        made[-1] = 1
    assert memory.zeros((0, 4), torch.float32).shape == (0, 4)
