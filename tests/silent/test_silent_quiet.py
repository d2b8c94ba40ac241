"""Programs that look dangerous and are right: nothing is told, nothing is stopped, the gradient is PyTorch's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradmend

T = torch.tensor
ALL: list[Callable[[], torch.Tensor]] = []


def quiet(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    ALL.append(run)
    return run


@quiet
def scores_masked_by_data_before_softmax() -> torch.Tensor:
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    scores = x * 0.5
    scores.data.masked_fill_(T([[0, 0, 1], [0, 1, 1]]).bool(), -float("inf"))
    (scores.softmax(-1) @ T([[1.0], [5.0], [7.0]])).pow(2).sum().backward()
    return x.grad


@quiet
def real_part_assigned_after_a_detach() -> torch.Tensor:
    x = torch.ones(2, dtype=torch.cdouble, requires_grad=True)
    h = x * 1
    h.detach()
    h.real = T([3.0, 4.0], dtype=torch.float64)
    h.imag = T([3.0, 4.0], dtype=torch.float64)
    (h.abs() ** 2).sum().backward()
    return x.grad


@quiet
def checkpoint_fills_a_buffer_before_it_reads_it() -> torch.Tensor:
    x = T([1.0, 2.0, 3.0], requires_grad=True)
    scratch = torch.zeros(3)

    def region(x: torch.Tensor) -> torch.Tensor:
        scratch[:] = 5.0
        y = x.exp() + scratch
        scratch[...] = 6.0
        return y * scratch

    for reentrant in (False, True):
        checkpoint(region, x, use_reentrant=reentrant).sum().backward()
    return x.grad


@quiet
def edit_that_nobody_uses() -> torch.Tensor:
    x = T([1.0, 2.0], requires_grad=True)
    h = x * 2
    y = h.sum() * 3
    h.data.zero_()
    y.backward()
    return x.grad


@quiet
def edit_that_changes_nothing() -> torch.Tensor:
    x = T([1.0, 2.0], requires_grad=True)
    h = x * 2
    h.data.clamp_(min=0)
    (h**2).sum().backward()
    return x.grad


@quiet
def edit_undone_bit_for_bit() -> torch.Tensor:
    x = T([1.0, 2.0, 3.0], requires_grad=True)
    h = x * 2
    old = h.detach().clone()
    h.data.mul_(2)
    h.data.mul_(3)
    h.data.copy_(old)
    h.norm().backward()
    return x.grad


@quiet
def constant_added_and_taken_back() -> torch.Tensor:
    x = T([1.0, 2.0, 3.0], requires_grad=True)
    h = x * 2
    old = h.detach().clone()
    with torch.no_grad():
        h.add_(1e-3)
        h.copy_(old)
    h.norm().backward()
    return x.grad


@quiet
def elements_probed_and_put_back_at_once() -> torch.Tensor:
    x = T([1.0, 2.0, 3.0], requires_grad=True)
    h = x * 2
    old = h.detach().clone()
    for i in range(3):
        h.data[i] = 7.0
    h.data.copy_(old)
    h.norm().backward()
    return x.grad


@quiet
def gradcheck_of_an_inner_tensor() -> torch.Tensor:
    x = T([0.1, 0.2], dtype=torch.double, requires_grad=True)
    h = x * 2
    assert torch.autograd.gradcheck(lambda z: 1 / z.norm(), (h,), fast_mode=True, atol=1e-3)
    assert torch.autograd.gradcheck(lambda z: 1 / z.norm(), (h,), atol=1e-3)
    h.norm().backward()
    return x.grad


@quiet
def checkpoint_with_a_block_without_grad() -> torch.Tensor:
    x = T([[1.0, -2.0, 3.0]], requires_grad=True)

    def region(t: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = t.abs().max()
        with torch.enable_grad():
            return (t / scale).tanh()

    for reentrant in (True, False):
        checkpoint(region, x, use_reentrant=reentrant).sum().backward()
    return x.grad


@quiet
def edit_of_elements_that_are_cut_off() -> torch.Tensor:
    x = T([1.0, 2.0, 3.0], requires_grad=True)
    h = x * 2
    h.data[0] = 100.0
    (h[1:] ** 2).sum().backward()
    return x.grad


@quiet
def state_detached_and_reset() -> torch.Tensor:
    cell = nn.RNNCell(2, 2)
    for p in cell.parameters():
        nn.init.constant_(p, 0.3)
    state = torch.zeros(1, 2)
    for step in range(3):
        out = cell(torch.full((1, 2), float(step)), state)
        out.sum().backward()
        state = out.detach()
        state.mul_(0.5)
    return cell.weight_hh.grad


@quiet
def training_with_ema_and_clamps() -> torch.Tensor:
    torch.manual_seed(0)
    net, ema = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 3)).pow(2).sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for p, e in zip(net.parameters(), ema.parameters(), strict=True):
                e.lerp_(p, 0.1)
                p.clamp_(-0.5, 0.5)
        for p in net.parameters():
            p.data.mul_(0.99)
    return net.weight.grad


@quiet
def data_swapped_twice_and_put_back() -> torch.Tensor:
    w = nn.Parameter(T([3.0, 3.0]))
    x = T([1.0, 2.0]).requires_grad_()
    y, was = x * w, w.data.clone()
    for other in (T([7.0, 7.0]), T([8.0, 8.0]), was):
        w.data = other
    y.sum().backward()
    return x.grad


@quiet
def embedding_renormed_between_lookups() -> torch.Tensor:
    table = nn.Embedding(4, 2, max_norm=1.0)
    nn.init.constant_(table.weight, 3.0)
    a = table(T([0, 1])).sum()
    b = table(T([1, 2])).sum()
    (a + b).backward()
    return table.weight.grad


class MarkedDouble(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.mark_dirty(x)
        x *= 2
        return x

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return 2 * grad


@quiet
def input_written_and_marked() -> torch.Tensor:
    x = T([1.0, 2.0], requires_grad=True)
    h = x.clone()
    y = MarkedDouble.apply(h)
    (y * h).sum().backward()
    return x.grad


@quiet
def view_written_and_marked() -> torch.Tensor:
    x = T([1.0, 2.0], requires_grad=True)
    h = x.clone()
    MarkedDouble.apply(h[:1])
    (h**2).sum().backward()
    return x.grad


class Statistics(torch.autograd.Function):
    """Writes a buffer it was given, and scratch memory on ctx: no gradient depends on either."""

    @staticmethod
    def forward(ctx, x, mean):  # type: ignore[no-untyped-def]
        mean.mul_(0.9).add_(x.mean(), alpha=0.1)
        ctx.save_for_backward(x)
        ctx.scratch = torch.empty_like(x)
        ctx.scale = T(2.0)
        return x * x * 2

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        torch.mul(x, grad, out=ctx.scratch)
        return ctx.scratch * 2 * ctx.scale, None


@quiet
def function_with_a_buffer() -> torch.Tensor:
    x, mean = T([1.0, 2.0], requires_grad=True), T(0.0)
    for _ in range(2):
        Statistics.apply(x, mean).sum().backward()
    return x.grad


@quiet
def hooks_that_own_their_gradient() -> torch.Tensor:
    x = T([1.0, 2.0], requires_grad=True)
    h = x * 2
    h.register_hook(lambda g: g.clamp_(-1, 1))
    x.register_hook(lambda g: g.mul_(0.5))
    (h**2).sum().backward()
    return x.grad


@quiet
def hook_on_the_root() -> torch.Tensor:
    x = T([1.0, 2.0], requires_grad=True)
    loss = (x * 2).sum()
    loss.register_hook(lambda g: g.mul_(128))
    loss.backward()
    return x.grad


@quiet
def hook_on_one_half_of_a_cat() -> torch.Tensor:
    x = T([1.0, 2.0], requires_grad=True)
    a, b = x * 2, x * 3
    b.register_hook(lambda g: g.mul_(10))
    (torch.cat([a, b]) ** 2).sum().backward()
    return x.grad


@quiet
def hook_runs_last() -> torch.Tensor:
    x = T([1.0, 2.0], requires_grad=True)
    a = x * 2
    b = x * 3  # its backward runs first, and is done with the gradient that both got
    a.register_hook(lambda g: g.mul_(10))
    (a + b).backward(torch.ones(2))
    return x.grad


class Caching(nn.Module):
    """Builds a table in its first run, counts calls, and normalises: fine to run twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.table: torch.Tensor | None = None
        self.register_buffer("calls", T(0))
        self.calls: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(2.0).cos()
        self.calls += 1
        return torch.relu_(self.norm(x) * self.table).exp()


def _checkpointed(reentrant: bool) -> torch.Tensor:
    torch.manual_seed(0)
    module, x = Caching(), torch.randn(4, 2, requires_grad=True)
    drop = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2), nn.ReLU(inplace=True))
    optimizer = torch.optim.SGD([*module.parameters(), *drop.parameters()], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        h = checkpoint(module, x, use_reentrant=reentrant)
        checkpoint(drop, h, use_reentrant=reentrant).sum().backward()
        optimizer.step()
    return x.grad


@quiet
def checkpoint_plain() -> torch.Tensor:
    return _checkpointed(False)


@quiet
def checkpoint_reentrant() -> torch.Tensor:
    return _checkpointed(True)


@quiet
def prediction_logged_through_numpy() -> torch.Tensor:
    x = T([1.0, 2.0], requires_grad=True)
    h = x * 2
    loss = (h**2).sum()
    logged = h.detach().numpy().copy()
    logged *= 255
    assert isinstance(logged, np.ndarray)
    loss.backward()
    return x.grad


@quiet
def noise_of_one_number_added_by_data() -> torch.Tensor:
    x = T([1.0, 2.0], requires_grad=True)
    h = x * 2
    h.data += 0.5
    (h**2).sum().backward()
    return x.grad


@quiet
def row_maximum_taken_off_by_data_before_softmax() -> torch.Tensor:
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    h = x * 0.5
    h.data.sub_(h.data.max(-1, keepdim=True).values)
    (h.softmax(-1) @ T([[1.0], [5.0], [7.0]])).pow(2).sum().backward()
    return x.grad


@quiet
def numpy_view_written_after_the_use() -> torch.Tensor:
    x = T([1.0, 2.0], requires_grad=True)
    h = x * 2
    array = h.detach().numpy()
    loss = h.relu().sum()
    array *= 255
    loss.backward()
    return x.grad


@quiet
def numpy_view_and_a_write_in_the_open() -> torch.Tensor:
    x = T([1.0, 2.0], requires_grad=True)
    h = x * 2
    array = h.detach().numpy()
    h.mul_(3)
    assert array[0] == 6.0
    h.relu().sum().backward()
    return x.grad


def _hooked(hook: Callable[[torch.Tensor], object], shared: bool) -> torch.Tensor:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    a, b = y * 3, x * 2
    b.register_hook(hook)
    ((a + b) if shared else torch.cat([a, b])).pow(2).sum().backward()
    return x.grad


@quiet
def hook_writes_what_is_there_already() -> torch.Tensor:
    return _hooked(lambda grad: grad.nan_to_num_(), True) + _hooked(lambda grad: grad.clamp_(-99, 99), True)


@quiet
def hook_masks_nothing() -> torch.Tensor:
    def hook(grad: torch.Tensor) -> None:
        grad[grad.isnan()] = 0

    return _hooked(hook, True)


@quiet
def hook_scales_a_slice_of_its_own() -> torch.Tensor:
    """`cat` sends each input a slice: the others hold the same memory, and other bytes of it."""
    return _hooked(lambda grad: grad.mul_(2), False)


@quiet
def hook_scales_the_real_part_of_a_gradient() -> torch.Tensor:
    x = torch.linspace(-1, 1, 4).requires_grad_()
    t = x * 1
    t.register_hook(lambda grad: grad.mul_(2))
    torch.fft.rfft(t).abs().sum().backward()
    return x.grad


@quiet
def sparse_values_written_after_coalesce() -> torch.Tensor:
    x = torch.tensor([0.5, 0.25, 2.0], requires_grad=True)
    values = x * 1
    sparse = torch.sparse_coo_tensor(
        T([[0, 1, 2], [0, 1, 2]]), values, (3, 3), check_invariants=False
    ).coalesce()
    y = torch.sparse.mm(sparse, x[:, None])
    values.mul_(3)
    y.sum().backward()
    return x.grad


@quiet
def batch_norm_steps_before_its_second_backward() -> torch.Tensor:
    torch.manual_seed(0)
    norm, x = nn.BatchNorm1d(3).double(), torch.randn(2, 8, 3, dtype=torch.float64)
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(norm(x[0] * w).pow(3).sum(), w, create_graph=True)
    return torch.autograd.grad(norm(x[1] * (w - 0.1 * first)).pow(3).sum(), w)[0]


@quiet
def hooks_keep_half_the_bits() -> torch.Tensor:
    """Lossy on purpose: ones come back to the bit, the others rounded."""
    kept: dict[int, torch.Tensor] = {}

    def pack(t: torch.Tensor) -> int:
        kept[len(kept)] = t.detach().bfloat16()
        return len(kept) - 1

    x = torch.linspace(0.1, 1.7, 9, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: kept[i].float()):
        y = (x.exp() * torch.tensor([1.0, 2.0, 4.0] * 3, requires_grad=True)).sum()
    y.backward()
    return x.grad


@quiet
def hook_zeroes_all_of_an_expanded_gradient() -> torch.Tensor:
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: grad.zero_())
    (y.sum() + x.sin().sum()).backward()
    return x.grad


@quiet
def module_hook_scales_the_gradient_that_its_module_passes_on() -> torch.Tensor:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    module = nn.Identity()
    module.register_full_backward_hook(lambda _, grads, __: (grads[0].mul_(3), None)[1])
    (module(x * 1) + y).sin().sum().backward()
    return x.grad


@quiet
def views_that_nobody_uses_since_their_base_was_written() -> torch.Tensor:
    x = torch.ones(3, requires_grad=True)
    h = x * 1
    views = h.unbind()
    y = views[0] * 2
    h.mul_(3)
    (y + h.sum()).backward()
    assert len(views) == 3
    return x.grad


class _Reversible(torch.autograd.Function):
    """Frees its input, as reversible layers do."""

    @staticmethod
    def forward(ctx, x, on_ctx):  # type: ignore[no-untyped-def]
        out = x.detach() * 2
        ctx.size = x.untyped_storage().size()
        x.untyped_storage().resize_(0)
        if on_ctx:
            ctx.x = x
        else:
            ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        (x,) = (ctx.x,) if "x" in vars(ctx) else ctx.saved_tensors
        x.untyped_storage().resize_(ctx.size)
        return grad * 2, None


def _freed(size: int, on_ctx: bool) -> torch.Tensor:
    w = torch.ones(size, requires_grad=True)
    _Reversible.apply(w * 1, on_ctx).sum().backward()
    return w.grad


@quiet
def storage_freed_before_it_is_kept() -> torch.Tensor:
    return torch.cat([_freed(3, False), _freed(100_000, False)])


@quiet
def storage_freed_before_it_is_kept_on_ctx() -> torch.Tensor:
    return torch.cat([_freed(3, True), _freed(100_000, True)])


@quiet
def storage_freed_and_filled_again() -> torch.Tensor:
    """As sharded training does between forward and backward."""
    x, p = torch.ones(100, requires_grad=True), torch.full((100,), 3.0)
    y = x * p
    storage, old = p.untyped_storage(), p.clone()
    size = storage.size()
    storage.resize_(0)
    z = x * 2
    storage.resize_(size)
    p.data.copy_(old)
    (y + z).sum().backward()
    return x.grad


@pytest.mark.parametrize("policy", ["watch", "heal"])
@pytest.mark.parametrize("run", ALL, ids=lambda run: run.__name__)
def test_quiet(run: Callable[[], torch.Tensor], policy: str) -> None:
    plain = run()
    with getattr(gradmend, policy)() as session:
        got = run()
    assert torch.equal(got, plain)
    assert [c.rule for c in session.conflicts if c.kind != "refused-but-right"] == []
    assert session.outcome == "clean"


def test_a_failing_region_leaves_nothing_behind() -> None:
    def fails(_: torch.Tensor) -> torch.Tensor:
        raise ValueError("inside")

    x = T([1.0], requires_grad=True)
    with gradmend.watch():
        for reentrant in (False, True):
            with pytest.raises(ValueError, match="inside"):
                checkpoint(fails, x, use_reentrant=reentrant)
        assert torch.overrides._get_current_function_mode_stack() == []
        (x * x).sum().backward()
    assert x.grad == 2.0


def test_an_edit_dies_with_its_graph() -> None:
    from gradmend.capture.edits import live_edits

    with gradmend.watch():
        h = T([1.0], requires_grad=True) * 2
        h.data.zero_()
        assert len(live_edits.live()) == 1
        del h
        assert live_edits.live() == []


def test_a_healed_hook_is_told_once_with_its_count() -> None:
    x = T([1.0, 2.0], requires_grad=True)
    with gradmend.heal() as session:
        for _ in range(5):
            a, b = x * 2, x * 3
            b.register_hook(lambda grad: grad.mul_(10))
            (a + b).backward(torch.ones(2))
    assert [(c.rule, c.times) for c in session.conflicts] == [("GM207", 5)]
    assert torch.equal(x.grad, T([160.0, 160.0]))


@pytest.mark.parametrize("inside", ["inference_mode", "vmap", "grad"])
def test_the_first_context_of_a_process_may_be_entered_anywhere(inside: str) -> None:
    program = f"""
import torch, gradmend
def enter(t):
    with gradmend.watch():
        return (t * t).sum()
x = torch.ones(3)
if {inside!r} == "inference_mode":
    with torch.inference_mode():
        enter(x)
elif {inside!r} == "vmap":
    torch.func.vmap(enter)(torch.ones(2, 3))
else:
    torch.func.grad(enter)(x)
with gradmend.watch():
    a = torch.ones(2, requires_grad=True)
    b, c = a * 2, a * 3
    c.register_hook(lambda grad: grad.mul_(10))
    try:
        (b + c).backward(torch.ones(2))
    except gradmend.ConflictError as error:
        assert "GM207" in str(error)
    else:
        raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
