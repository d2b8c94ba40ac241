"""However backward comes: twice, out of order, in parts, from several roots, of higher order, in a thread, with hooks."""

from __future__ import annotations

import threading

import pytest
import torch
from healed import healed, start

import gradmend


def test_twice_with_retain_graph_and_a_write_in_between() -> None:
    def program(x: torch.Tensor) -> None:
        b = x.clone()
        loss = (b**2).sum()
        b.mul_(10)
        loss.backward(retain_graph=True)
        b.zero_()
        loss.backward()

    assert healed(program).tolist() == [4, 8, 12, 16]


def _squares_of_a_changing_buffer(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    """loss k is the sum of squares of (k + 1) * x."""
    b = x.clone()
    losses = []
    for k in range(count):
        losses.append((b**2).sum())
        b.mul_((k + 2) / (k + 1))
    return losses


@pytest.mark.parametrize("count", [5, 60])  # few Records are laid one by one, many by a shadow
@pytest.mark.parametrize("order", ["oldest first", "newest first", "shuffled", "every other"])
def test_asked_out_of_order(order: str, count: int) -> None:
    def program(x: torch.Tensor) -> None:
        losses = _squares_of_a_changing_buffer(x, count)
        ks = list(range(count))
        if order == "newest first":
            ks.reverse()
        elif order == "shuffled":
            ks = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
        elif order == "every other":
            ks = ks[::2] + ks[1::2]
        for k in ks:
            (each,) = torch.autograd.grad(losses[k], x, retain_graph=True)
            torch.testing.assert_close(each, 2 * (k + 1) ** 2 * x.detach())
        torch.stack(losses).sum().backward()

    right = sum(2 * (k + 1) ** 2 for k in range(count)) * start().detach()
    torch.testing.assert_close(healed(program), right)


def test_several_roots_and_several_inputs() -> None:
    def program(x: torch.Tensor) -> None:
        y = start()
        a, b = x * 1, y * 1
        one, two = a * b, (a**3).sum()
        a.zero_()
        b[::2] = -1
        torch.autograd.backward([one, two], [torch.ones(4, dtype=torch.float64), None])
        assert y.grad is not None
        assert y.grad.tolist() == [1, 2, 3, 4]

    assert healed(program).tolist() == [v + 3 * v**2 for v in (1, 2, 3, 4)]


def test_in_parts() -> None:
    def program(x: torch.Tensor) -> None:
        a = x * 2
        middle = (a**2).detach().requires_grad_()
        before = a**2
        loss = (middle**3).sum()
        a.mul_(5)
        with torch.no_grad():
            middle.mul_(7)
        (part,) = torch.autograd.grad(loss, middle)
        before.backward(part)

    right = [3 * (4 * v * v) ** 2 * 8 * v for v in (1, 2, 3, 4)]
    assert healed(program).tolist() == right


def test_double_backward() -> None:
    def program(x: torch.Tensor) -> None:
        b = x * 1
        loss = (b**4).sum()
        b.mul_(10)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        b.add_(3)
        (slope**2).sum().backward()

    assert healed(program).tolist() == [2 * 4 * v**3 * 12 * v**2 for v in (1, 2, 3, 4)]


def test_third_order_through_a_slice() -> None:
    def program(x: torch.Tensor) -> None:
        b = x * 1
        loss = (b.sin() * b).sum()
        b[1:3] = 0.5
        for _ in range(2):
            (loss,) = torch.autograd.grad(loss.sum(), x, create_graph=True)
            b.mul_(2)
        loss.sum().backward()

    x = start()
    value = (x.sin() * x).sum()
    for _ in range(3):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    torch.testing.assert_close(healed(program), value.detach())


def test_in_another_thread() -> None:
    def program(x: torch.Tensor) -> None:
        b = x.clone()
        loss = (b**2).sum()
        b.mul_(10)
        worker = threading.Thread(target=loss.backward)
        worker.start()
        worker.join()

    assert healed(program).tolist() == [2, 4, 6, 8]


def test_forward_in_threads_each_with_its_own_context() -> None:
    results: list[list[float]] = []

    def work() -> None:
        for _ in range(20):
            x = start()
            with gradmend.heal():
                b = x.clone()
                loss = (b**2).sum()
                b[1:] *= 10
                loss.backward()
            assert x.grad is not None
            results.append(x.grad.tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[2, 4, 6, 8]] * 80


def test_hooks_see_and_may_write() -> None:
    seen: list[list[float]] = []

    def program(x: torch.Tensor) -> None:
        b = x * 1
        c = b**2
        loss = (c**2).sum()

        def hook(g: torch.Tensor) -> None:
            seen.append(g.tolist())
            b.data.zero_()  # what the node after it needs: it still gets the value of the forward

        c.register_hook(hook)
        c.detach().mul_(0)
        loss.backward()

    assert healed(program).tolist() == [4 * v**3 for v in (1, 2, 3, 4)]
    assert seen == [[2 * v**2 for v in (1, 2, 3, 4)]]


def test_a_hook_on_a_parameter_steps_it_during_backward() -> None:
    def program(x: torch.Tensor) -> None:
        w = start()

        def step(p: torch.Tensor) -> None:
            assert p.grad is not None
            p.detach().sub_(p.grad)

        w.register_post_accumulate_grad_hook(step)
        ((x * w).sin() * w).sum().backward()

    x, w = start(), start()
    ((x * w).sin() * w).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(healed(program), x.grad)


@pytest.mark.parametrize("inside", [True, False])
def test_a_decorated_function(inside: bool) -> None:
    @gradmend.heal()
    def forward(x: torch.Tensor) -> torch.Tensor:
        b = x.clone()
        loss = (b**2).sum()
        b.mul_(10)
        if inside:
            loss.backward()
        return loss

    x = start()
    loss = forward(x)
    if not inside:
        loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4, 6, 8]


def test_a_write_after_the_context_is_left_stops() -> None:
    """No tap sees it any more, so the old value is gone: right, or it stops."""
    for write in (lambda b: b.mul_(10), lambda b: b.data.mul_(10), lambda b: b.detach().numpy().fill(3)):
        x = start()
        with gradmend.heal():
            b = x.clone()
            loss = (b**2).sum()
        write(b)
        with pytest.raises(gradmend.ConflictError):
            loss.backward()
        assert x.grad is None
