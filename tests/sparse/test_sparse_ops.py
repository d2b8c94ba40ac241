"""Each of the 106 operations equals dense: forward, backward, double backward, forward mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sparse_catalog import OPS, Op, build_dense, dense_of, numbers, places, world
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from gradmend.sparse import DenseResultError, Pattern, SparseTensor
from gradmend.sparse.errors import SparseError

A_PLACES, B_PLACES = places()
NUMBERS = numbers(A_PLACES, B_PLACES)
NAMES = tuple(NUMBERS)


def build(mask: Tensor, values: Tensor) -> SparseTensor:
    return SparseTensor(Pattern.sorted(mask.nonzero().t().contiguous(), tuple(mask.shape)), values)


def run(op: Op, *tensors: Tensor) -> Tensor:
    return dense_of(op.run(world(build, A_PLACES, B_PLACES, dict(zip(NAMES, tensors, strict=True)))))


def oracle(op: Op, *tensors: Tensor) -> Tensor:
    return dense_of(op.oracle(world(build_dense, A_PLACES, B_PLACES, dict(zip(NAMES, tensors, strict=True)))))


def leaves() -> list[Tensor]:
    return [v.clone().requires_grad_() for v in NUMBERS.values()]


def gradients(out: Tensor, inputs: list[Tensor], **options: Any) -> list[Tensor]:
    found = torch.autograd.grad(out, inputs, allow_unused=True, **options)
    return [torch.zeros_like(i) if g is None else g for g, i in zip(found, inputs, strict=True)]


ops = pytest.mark.parametrize("op", [o for o in OPS if not o.raises], ids=lambda o: o.name)
differentiable = pytest.mark.parametrize(
    "op", [o for o in OPS if o.grad and not o.raises], ids=lambda o: o.name
)


@ops
def test_forward_equals_dense(op: Op) -> None:
    torch.testing.assert_close(run(op, *NUMBERS.values()), oracle(op, *NUMBERS.values()))


@differentiable
def test_backward_and_double_backward_equal_dense(op: Op) -> None:
    ours, theirs = leaves(), leaves()
    a, b = run(op, *ours), oracle(op, *theirs)
    weight = torch.randn(a.shape, dtype=a.dtype, generator=torch.Generator().manual_seed(2))
    first_a = gradients((a.sin() * weight).sum(), ours, create_graph=True)
    first_b = gradients((b.sin() * weight).sum(), theirs, create_graph=True)
    for g, h in zip(first_a, first_b, strict=True):
        torch.testing.assert_close(g, h)
    second_a = gradients(sum((g.cos() * (i + 1)).sum() for i, g in enumerate(first_a)), ours)
    second_b = gradients(sum((g.cos() * (i + 1)).sum() for i, g in enumerate(first_b)), theirs)
    for g, h in zip(second_a, second_b, strict=True):
        torch.testing.assert_close(g, h)


@differentiable
def test_gradcheck(op: Op) -> None:
    inputs = _differentiated(op)
    # Torch's own layouts have no forward mode.
    forward = not op.name.startswith("to_sparse_")
    assert gradcheck(lambda *t: run(op, *t), inputs, check_forward_ad=forward)
    # Along random directions; entry by entry below.
    assert gradgradcheck(lambda *t: run(op, *t), inputs, fast_mode=True)


@pytest.mark.slow
@differentiable
def test_gradgradcheck_entry_by_entry(op: Op) -> None:
    if op.name == "kron":
        pytest.skip("of its 4096 numbers a second derivative each would take longer than all others")
    assert gradgradcheck(lambda *t: run(op, *t), _differentiated(op))


def _differentiated(op: Op) -> list[Tensor]:
    """Numbers for each input; those that the op reads want gradients."""
    if op.name == "to(float32)":
        pytest.skip("float32 is too coarse for finite differences")
    probe = leaves()
    found = torch.autograd.grad(run(op, *probe).sum(), probe, allow_unused=True)
    return [v.clone().requires_grad_(g is not None) for v, g in zip(NUMBERS.values(), found, strict=True)]


@pytest.mark.parametrize("op", [o for o in OPS if o.raises], ids=lambda o: o.name)
def test_dense_results_are_refused_with_the_two_choices(op: Op) -> None:
    with pytest.raises(DenseResultError, match=r"dense in every entry .*S\.map\(.*S\.to_dense\(\)"):
        run(op, *NUMBERS.values())


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_no_entries_are_differentiable_too(reduce: str) -> None:
    values, X = torch.zeros(0, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    S = SparseTensor(Pattern(torch.zeros(2, 0, dtype=torch.int64), (4, 3)), values)
    for out in (S.propagate(X, reduce), S[0, 0], S[torch.tensor([0, 1]), torch.tensor([2, 2])]):
        assert out.requires_grad and not out.detach().count_nonzero()
        out.sum().backward()
    assert values.grad.shape == (0,) and not X.grad.count_nonzero()
    assert SparseTensor(S.pattern, torch.zeros(0, dtype=torch.bool))[1, 1].dtype == torch.bool


def test_hardtanh_is_torchs_at_the_bounds_and_twice() -> None:
    numbers = torch.tensor([-2.0, -1.0, 0.5, 1.0, 2.0])
    found = []
    for wrap in (lambda v: v, lambda v: SparseTensor(Pattern(torch.arange(5)[None], (5,)), v)):
        v = numbers.clone().requires_grad_()
        (first,) = torch.autograd.grad(torch.nn.functional.hardtanh(wrap(v)).sum(), v, create_graph=True)
        found.append([first, *torch.autograd.grad(first.square().sum(), v)])
    torch.testing.assert_close(*found)


def test_squeeze_of_no_dimensions_drops_none() -> None:
    """A sum over () is over all of them; torch's squeeze(()) leaves the shape alone."""
    one = SparseTensor(Pattern(torch.tensor([[0, 0], [1, 2]]), (1, 3)), torch.randn(1, 2), batch_dims=1)
    for dims in ((), []):
        assert one.squeeze(dims).shape == one.to_dense().squeeze(dims).shape == (1, 1, 3)
    assert one.squeeze((0, 1)).shape == (3,)


def test_linalg_norm_and_roll_refuse_the_dimensions_that_torch_refuses() -> None:
    """No dimensions were all of them, silently; "fro" of one dimension was 2."""
    X = torch.randn(2, 3)
    S = SparseTensor.from_dense(X)
    norms: list[tuple[Any, Any]] = [
        (2, ()),
        (None, ()),
        (1, []),
        (None, (0, 1, 0)),
        ("fro", (0,)),
        ("fro", 1),
    ]
    for ord, dim in norms:
        with pytest.raises(RuntimeError):
            torch.linalg.norm(X, ord, dim)
        with pytest.raises(SparseError, match="norm"):
            torch.linalg.norm(S, ord, dim)  # type: ignore[call-overload]
    for dims in (torch.zeros(0), torch.zeros(0, 2, 1), "", range(0)):
        with pytest.raises(TypeError):
            X.roll(1, dims)  # type: ignore[call-overload]
        with pytest.raises(SparseError):
            S.roll(1, dims)
