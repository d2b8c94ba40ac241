"""Lazy modules: their parameters refuse nearly every question until the first forward makes them."""

from __future__ import annotations

import torch

import gradmend


def _train() -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.LazyConv2d(4, 3),
        torch.nn.LazyBatchNorm2d(),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(2),
    )
    x = torch.randn(2, 3, 6, 6)
    kept = x.requires_grad_().exp().sum()  # a Save lives, so that the taps are awake
    net(x).square().sum().backward()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.step()
    (kept + net(x).square().sum()).backward()
    assert x.grad is not None
    return [*(p.detach().clone() for p in net.parameters()), x.grad]


def test_lazy_modules_train_as_without() -> None:
    plain = _train()
    with gradmend.watch() as session:
        watched = _train()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert not session.conflicts
