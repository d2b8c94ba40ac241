"""What PyTorch refuses in forward and has one plain meaning is made by other words under heal()."""

from __future__ import annotations

import warnings

import pytest
import torch

import gradmend

pytestmark = pytest.mark.filterwarnings("ignore::gradmend.GradmendWarning")


def leaf() -> torch.Tensor:
    return torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)


def test_out_with_a_gradient():
    x, right = leaf(), leaf()
    buffer = torch.empty(3, dtype=torch.float64)
    with gradmend.heal() as session:
        made = torch.mul(x, x.exp(), out=buffer)
        assert made is buffer
        buffer.sin().sum().backward()
    right.mul(right.exp()).sin().sum().backward()
    assert torch.equal(x.grad, right.grad)
    assert [c.rule for c in session] == ["GM125"]


def test_a_buffer_that_is_filled_in_each_iteration():
    """It owes nothing to the iteration before, whose graph is gone; what an op kept of it is healed."""
    x, right = leaf(), leaf()
    buffer = torch.empty(3, dtype=torch.float64)
    with gradmend.heal() as session:
        for i in range(3):
            torch.mul(x, float(i), out=buffer)
            kept = buffer.exp()
            torch.add(kept, x, out=kept)  # overwrites what exp kept
            kept.sum().backward()
    for i in range(3):
        ((right * float(i)).exp() + right).sum().backward()
    torch.testing.assert_close(x.grad, right.grad)
    assert next(c for c in session if c.rule == "GM125").times == 3


def test_out_of_several_results_and_of_an_empty_buffer():
    x, right = leaf(), leaf()
    values, places = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.long)
    with gradmend.heal():
        torch.sort(x, descending=True, out=(values, places))
        (values * torch.arange(3)).sum().backward()
    (torch.sort(right, descending=True).values * torch.arange(3)).sum().backward()
    assert torch.equal(x.grad, right.grad) and places.tolist() == [2, 1, 0]


def test_a_row_of_a_table():
    x, right = leaf(), leaf()
    table = torch.zeros(2, 3, dtype=torch.float64)
    with gradmend.heal():
        torch.tanh(x, out=table[0])
        table.pow(2).sum().backward()
    right.tanh().pow(2).sum().backward()
    torch.testing.assert_close(x.grad, right.grad)


def refused_as_plain(call) -> None:
    with pytest.raises(RuntimeError) as plain:
        call()
    with pytest.raises(RuntimeError) as told, gradmend.heal():
        call()
    assert str(plain.value).splitlines()[0] in str(told.value)


def test_a_leaf_has_two_meanings_and_stops():
    x, target = leaf(), leaf()
    refused_as_plain(lambda: torch.mul(x, x, out=target))


def test_a_buffer_of_another_shape_stops():
    x = leaf()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused_as_plain(lambda: torch.mul(x, x, out=torch.ones(2, dtype=torch.float64)))


def test_watch_and_audit_change_nothing():
    x = leaf()
    with pytest.raises(RuntimeError, match="automatic differentiation"), gradmend.watch():
        torch.mul(x, x, out=torch.empty(3, dtype=torch.float64))
    from gradmend.api.auditing import Audit

    with pytest.raises(RuntimeError, match="automatic differentiation"), Audit(1):
        torch.mul(x, x, out=torch.empty(3, dtype=torch.float64))


@pytest.mark.parametrize("cut", [lambda h: h[:2], lambda h: h.view(3, 1), lambda h: h.chunk(3)[0]])
def test_a_view_that_is_detached_in_place(cut):
    x, right = leaf(), leaf()
    h = x * 2
    with gradmend.heal() as session:
        view = cut(h)
        same = view
        view.detach_()
        assert same is view and not view.requires_grad and view.grad_fn is None
        assert view.untyped_storage().data_ptr() == h.untyped_storage().data_ptr()
        (h.pow(2).sum() + view.sum() * 100).backward()
    ((right * 2).pow(2).sum()).backward()
    assert torch.equal(x.grad, right.grad)
    assert "GM126" in [c.rule for c in session]


def test_what_is_written_to_a_detached_view_is_an_edit():
    x = leaf()
    with pytest.raises(gradmend.ConflictError) as stop, gradmend.heal():
        y = x * x
        view = y[0]
        view.detach_()
        view.mul_(3)
        (y * y).sum().backward()
    assert stop.value.conflict.rule == "GM210"


def test_out_of_another_kind_of_number_stops():
    x = leaf()
    with pytest.raises(RuntimeError, match="automatic differentiation"), gradmend.heal():
        torch.mul(x, 1.5, out=torch.zeros(3, dtype=torch.long))


def test_a_buffer_that_retains_its_gradient_and_results_by_name():
    x, right = leaf(), leaf()
    with gradmend.heal():
        y = x * 2
        y.retain_grad()
        torch.mul(x, 3.0, out=y)
        (y * y).sum().backward()
    (right * 3).pow(2).sum().backward()
    torch.testing.assert_close(x.grad, right.grad)
    values, places = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.long)
    with gradmend.heal():
        found = torch.max(leaf().reshape(3, 1) * 2, 0, out=(values, places))
    assert found.values is values and found.indices is places


def test_a_step_after_backward_is_an_update():
    w, right = leaf(), leaf()
    with gradmend.heal() as session:
        for _ in range(3):
            (w * w).sum().backward()
            w -= 0.1 * w.grad
            w.grad = None
        (w * w).sum().backward()
    for _ in range(3):
        (right * right).sum().backward()
        with torch.no_grad():
            right -= 0.1 * right.grad
        right.grad = None
    (right * right).sum().backward()
    assert torch.equal(w, right) and torch.equal(w.grad, right.grad)
    (conflict,) = session.conflicts
    assert conflict.rule == "GM121"
    assert any("a backward() has run, and no graph has begun since" in note for note in conflict.notes)


def test_an_average_between_forward_and_backward_is_an_update():
    """The graph read the average before the write, and reads it no more: backward gets the old values."""
    net, ema = leaf(), torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    with gradmend.heal() as session:
        loss = (net * ema).pow(2).sum()
        ema.mul_(0.5).add_(net, alpha=0.5)
        loss.backward()
    right, old = leaf(), torch.ones(3, dtype=torch.float64)
    (right * old).pow(2).sum().backward()
    assert torch.equal(net.grad, right.grad)
    assert torch.equal(ema.detach(), 0.5 * old + 0.5 * right.detach())
    assert {c.rule for c in session.conflicts} >= {"GM121"}


class Positive(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([-1.0, 2.0]))

    def forward(self, x):
        self.w.clamp_(min=0)
        return x * self.w


def test_a_write_that_the_forward_reads_on_stops_at_backward():
    net = Positive()
    with pytest.raises(RuntimeError, match="leaf Variable") as stop, gradmend.heal():
        net(torch.ones(2)).sum().backward()
    conflict = stop.value.__gradmend__
    assert conflict.culprits[0].file == __file__
    assert any("part of the computation" in note for note in conflict.notes)


def scaled(w):
    w *= 0.5
    return w


@pytest.mark.parametrize("made", [lambda: torch.nn.Parameter(torch.ones(3)), leaf])
def test_a_function_that_returns_the_leaf_it_writes_stops(made):
    w = made()
    with pytest.raises(RuntimeError, match="leaf Variable"), gradmend.heal():
        scaled(w).sum().backward()


def test_the_first_values_of_a_parameter():
    w = torch.nn.Parameter(torch.empty(3, dtype=torch.float64))
    with gradmend.heal() as session:
        w.fill_(2.0)
        (w * w).sum().backward()
    assert torch.equal(w.grad, torch.full((3,), 4.0, dtype=torch.float64))
    assert any("first value of a parameter" in note for c in session.conflicts for note in c.notes)
