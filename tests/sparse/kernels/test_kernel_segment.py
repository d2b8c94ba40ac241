"""Segment kernels against a loop over rows, on both roads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradmend.sparse.kernels import segment

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
TOLERANCE = {torch.bfloat16: {"atol": 0.1, "rtol": 0.03}, torch.float16: {"atol": 0.01, "rtol": 0.01}}
CROW = torch.tensor([0, 0, 3, 4, 4, 11, 60, 60])


@pytest.fixture(params=["compiled", "plain"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(segment, "SMALL", 0 if request.param == "compiled" else float("inf"))
    return request.param


def by_row(f: Callable[[Tensor], Tensor], values: Tensor, empty: float) -> Tensor:
    rows = list(values.double().split(CROW.diff().tolist()))
    blank = torch.full(values.shape[1:], empty, dtype=torch.float64)
    return torch.stack([f(r) if len(r) else blank for r in rows]).to(values.dtype)


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, **TOLERANCE.get(want.dtype, {}))


def pairs(*shapes: tuple[int, ...]) -> list[object]:
    """Every shape in one dtype, the first and the last in the others: six kernels to compile for each, the first is slow."""
    return [
        pytest.param(d, s, marks=pytest.mark.slow if d is not FLOATS[0] and s is shapes[0] else ())
        for d in FLOATS
        for s in (shapes if d is FLOATS[0] else (shapes[0], shapes[-1]))
    ]


@pytest.mark.parametrize(("dtype", "trailing"), pairs((), (1,), (5,), (2, 3), (140,)), ids=str)
def test_reductions(road: str, dtype: torch.dtype, trailing: tuple[int, ...]) -> None:
    v = torch.randn(60, *trailing).to(dtype)
    close(segment.segment_sum(CROW, v), by_row(lambda r: r.sum(0), v, 0))
    close(segment.segment_mean(CROW, v), by_row(lambda r: r.mean(0), v, 0))
    close(segment.segment_prod(CROW, v), by_row(lambda r: r.prod(0), v, 1))
    assert torch.equal(segment.segment_max(CROW, v), by_row(lambda r: r.amax(0), v, 0))
    assert torch.equal(
        segment.segment_min(CROW, v, float("inf")), by_row(lambda r: r.amin(0), v, float("inf"))
    )
    close(segment.segment_logsumexp(CROW, v), by_row(lambda r: r.logsumexp(0), v, float("-inf")))


@pytest.mark.parametrize(("dtype", "trailing"), pairs((), (4,), (150,)), ids=str)
def test_softmax_and_its_gradient(road: str, dtype: torch.dtype, trailing: tuple[int, ...]) -> None:
    v, g = (3 * torch.randn(60, *trailing)).to(dtype), torch.randn(60, *trailing).to(dtype)
    for forward, backward, dense in (
        (segment.segment_softmax, segment.segment_softmax_backward, torch.softmax),
        (segment.segment_log_softmax, segment.segment_log_softmax_backward, torch.log_softmax),
    ):
        leaf = v.double().clone().requires_grad_()
        want = torch.cat([dense(r, 0) for r in leaf.split(CROW.diff().tolist())])
        want.backward(g.double())
        out = forward(CROW, v)
        close(out, want.detach().to(dtype))
        assert leaf.grad is not None
        torch.testing.assert_close(
            backward(CROW, out, g).double(), leaf.grad, **TOLERANCE.get(dtype, {"atol": 1e-5, "rtol": 1e-4})
        )


def test_large_numbers_neither_overflow_nor_vanish(road: str) -> None:
    v = torch.randn(60) + 1e4
    assert segment.segment_logsumexp(CROW, v)[CROW.diff() > 0].isfinite().all()
    assert segment.segment_softmax(CROW, v).isfinite().all()
    assert segment.segment_log_softmax(CROW, -v).isfinite().all()
    inf = torch.full((60,), float("-inf"))
    assert segment.segment_logsumexp(CROW, inf).isneginf().all()


def test_nan_wins(road: str) -> None:
    v = torch.randn(60)
    v[[0, 20]] = float("nan")  # first in its row, and in the middle of one
    for f in (segment.segment_max, segment.segment_min, segment.segment_sum, segment.segment_prod):
        assert f(CROW, v).isnan().nonzero().flatten().tolist() == [1, 5]


def test_strides(road: str) -> None:
    v = torch.randn(7, 60).t()
    close(segment.segment_sum(CROW, v), by_row(lambda r: r.sum(0), v, 0))
    close(segment.segment_softmax(CROW, v), segment.segment_softmax(CROW, v.contiguous()))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.complex64, torch.complex128], ids=str)
def test_integers_and_complex(dtype: torch.dtype) -> None:
    v = torch.randn(60, 2, dtype=dtype) if dtype.is_complex else torch.randint(-4, 5, (60, 2), dtype=dtype)
    rows = v.split(CROW.diff().tolist())
    torch.testing.assert_close(segment.segment_sum(CROW, v), torch.stack([r.sum(0) for r in rows]).to(dtype))
    torch.testing.assert_close(
        segment.segment_prod(CROW, v), torch.stack([r.prod(0) for r in rows]).to(dtype)
    )
    if not dtype.is_complex:
        want = torch.stack([r.amax(0) if len(r) else torch.zeros(2, dtype=dtype) for r in rows])
        assert torch.equal(segment.segment_max(CROW, v), want)


def test_booleans_are_counted() -> None:
    v = torch.ones(60, dtype=torch.bool)
    assert segment.segment_sum(CROW, v).tolist() == CROW.diff().tolist()


def test_no_entries(road: str) -> None:
    none, v = torch.zeros(4, dtype=torch.int64), torch.zeros(0, 2)
    assert torch.equal(segment.segment_sum(none, v), torch.zeros(3, 2))
    assert torch.equal(segment.segment_max(none, v, -1), torch.full((3, 2), -1.0))
    assert torch.equal(segment.segment_prod(none, v), torch.ones(3, 2))
    assert segment.segment_softmax(none, v).shape == (0, 2)
    assert segment.segment_logsumexp(none, v).isneginf().all()


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool, torch.complex64], ids=str)
def test_scattering_and_gathering(road: str, dtype: torch.dtype) -> None:
    group = torch.randint(9, (70,))
    group[group == 4] = 5  # an empty group
    v = torch.randn(70, dtype=torch.complex64 if dtype.is_complex else torch.float32).mul(3).to(dtype)
    want = torch.stack([v.to(torch.complex128)[group == i].sum() for i in range(9)])
    got = segment.scatter_sum(group, v, 9)
    close(got, want.to(got.dtype) if got.is_complex() else want.real.to(got.dtype))
    assert torch.equal(segment.gather(group, got), got[group])
    strided = torch.stack([got, got], 1)[:, 1]
    assert torch.equal(segment.gather(torch.stack([group, group], 1)[:, 0], strided), got[group])
