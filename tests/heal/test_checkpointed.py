"""Checkpointed regions run twice. Healed, they are right, or the program stops with its story: never silently wrong."""

from __future__ import annotations

import pytest
import torch
from healed import start
from torch.utils.checkpoint import checkpoint

import gradmend

both_modes = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])


@both_modes
def test_untouched(reentrant: bool) -> None:
    x = start()
    with gradmend.heal() as session:
        y = checkpoint(lambda t: (t * 2).sin() * t, x, use_reentrant=reentrant)
        (y**2).sum().backward()
    right = start()
    (((right * 2).sin() * right) ** 2).sum().backward()
    torch.testing.assert_close(x.grad, right.grad)
    assert session.outcome == "clean"


@both_modes
def test_a_write_inside_the_region(reentrant: bool) -> None:
    def region(t: torch.Tensor) -> torch.Tensor:
        h = t * 2
        kept = h**2
        h.mul_(10)
        return kept + h

    x = start()
    with gradmend.heal():
        checkpoint(region, x, use_reentrant=reentrant).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8 * v + 20 for v in (1, 2, 3, 4)]


@both_modes
def test_a_write_to_the_output(reentrant: bool) -> None:
    x = start()
    with gradmend.heal():
        y = checkpoint(lambda t: t.exp(), x, use_reentrant=reentrant)
        loss = (y**2).sum()
        y.detach().mul_(10)
        loss.backward()
    torch.testing.assert_close(x.grad, 2 * torch.exp(2 * x.detach()))


@both_modes
@pytest.mark.parametrize("way", ["in place", "data", "slice", "after the context"])
def test_a_write_to_what_the_region_will_read_again(reentrant: bool, way: str) -> None:
    """The second run would read other values: plain PyTorch gives 10 times the gradient, or 100, in silence."""

    def program(x: torch.Tensor, context: object) -> torch.Tensor:
        with context:  # type: ignore[attr-defined]
            h = x * 1
            loss = checkpoint(lambda t: (t**3).sum(), h, use_reentrant=reentrant)
            if way == "in place":
                with torch.no_grad():
                    h.mul_(10)
            elif way == "data":
                h.data.mul_(10)
            elif way == "slice":
                with torch.no_grad():
                    h[1:] *= 10
        if way == "after the context":
            with torch.no_grad():
                h.mul_(10)
        loss.backward()
        assert x.grad is not None
        return x.grad

    right = 3 * start().detach() ** 2
    rule, found = "", None
    try:
        found = program(start(), gradmend.heal())
    except gradmend.ConflictError as stopped:
        rule = stopped.conflict.rule
    if found is None:
        assert rule in ("GM208", "GM102", "GM103", "GM110", "GM201", "GM202")
    else:
        torch.testing.assert_close(found, right)


@both_modes
def test_a_global_that_the_region_reads(reentrant: bool) -> None:
    """Not even an argument: a closure over a tensor that changes before the second run."""
    x, scale = start(), torch.full((4,), 2.0, dtype=torch.float64)
    with pytest.raises(gradmend.ConflictError) as stopped, gradmend.heal():
        loss = checkpoint(lambda t: (t * scale) ** 2, x, use_reentrant=reentrant).sum()
        scale.mul_(10)
        loss.backward()
    assert stopped.value.conflict.rule == "GM208"
    assert x.grad is None


def test_a_write_inside_a_checkpointed_block_overwrites_what_its_recomputation_saved():
    """Below checkpoint's hooks PyTorch checks no counter: plain, this is silently wrong."""
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4).double()
    x = torch.randn(5, 4, dtype=torch.float64)

    def written(x):
        h = torch.sigmoid(layer(x))
        h += x
        return h * h

    def out_of_place(x):
        h = torch.sigmoid(layer(x)) + x
        return h * h

    def gradient(run):
        layer.zero_grad()
        run().sum().backward()
        return layer.weight.grad.clone()

    right = gradient(lambda: out_of_place(x))
    checkpointed = lambda: checkpoint(written, x, use_reentrant=False)  # noqa: E731
    assert not torch.allclose(gradient(checkpointed), right)
    with gradmend.heal():
        assert torch.allclose(gradient(checkpointed), right)
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        gradient(checkpointed)
    assert caught.value.conflict.kind == "silent"
    assert caught.value.conflict.rule == "GM101"


@both_modes
def test_batches_that_a_norm_counts_for_its_statistics(reentrant: bool) -> None:
    """With `momentum=None` the count is read, and only the running statistics are made of it."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3, momentum=None), torch.nn.Tanh())
    x = torch.randn(5, 4, requires_grad=True)
    with gradmend.heal() as session:
        for _ in range(2):
            x.grad = None
            checkpoint(net, x, use_reentrant=reentrant).sum().backward()
    (right,) = torch.autograd.grad(net(x).sum(), x)
    torch.testing.assert_close(x.grad, right)
    assert session.outcome == "clean"
