"""Programs whose gradient plain PyTorch gets wrong in silence: one for each way that it can happen.

Each is a function that returns the gradient it got. `right` is the gradient of the forward as it was executed, worked
out by hand or by the same program written out of place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Program:
    run: Callable[[], torch.Tensor]
    right: torch.Tensor
    rule: str
    heals: Literal["healed", "stopped"]
    numpy: bool = False  # shares memory with numpy, as only the CPU can

    @property
    def name(self) -> str:
        return self.run.__name__


ALL: list[Program] = []
T = torch.tensor


def program(  # type: ignore[no-untyped-def]
    right: torch.Tensor, rule: str, heals: Literal["healed", "stopped"], *, numpy: bool = False
):
    def add(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        ALL.append(Program(run, right, rule, heals, numpy))
        return run

    return add


def leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values or (1.0, 2.0, 3.0), requires_grad=True)


# ------------------------------------------------------ writes that bump no counter


@program(T([2.0, 4.0, 6.0]), "GM201", "healed")
def data_write() -> torch.Tensor:
    x = leaf()
    h = x.clone()
    y = h * h
    h.data.add_(1)
    y.sum().backward()
    return x.grad


@program(T([2.0, 4.0, 6.0]), "GM201", "healed")
def data_alias_kept_by_name() -> torch.Tensor:
    x = leaf()
    h = x.clone()
    alias = h.data
    y = h * h
    alias[1:] = 7.0
    y.sum().backward()
    return x.grad


@program(T([2.0, 4.0, 6.0]), "GM202", "stopped", numpy=True)
def numpy_of_a_tensor() -> torch.Tensor:
    x = leaf()
    h = x.clone()
    y = h * h
    array = h.detach().numpy()
    array[0] = 50.0
    y.sum().backward()
    return x.grad


@program(T([5.0, 6.0, 7.0]), "GM202", "stopped", numpy=True)
def tensor_of_a_numpy_array() -> torch.Tensor:
    x = leaf()
    array = np.array([5.0, 6.0, 7.0], dtype=np.float32)
    y = x * torch.from_numpy(array)
    array *= 2
    y.sum().backward()
    return x.grad


@program(T([1.0, 1.0]), "GM202", "stopped", numpy=True)
def frombuffer() -> torch.Tensor:
    x = leaf(3.0, 4.0)
    memory = bytearray(np.ones(2, dtype=np.float32).tobytes())
    y = x * torch.frombuffer(memory, dtype=torch.float32)
    memory[:] = np.full(2, 9.0, dtype=np.float32).tobytes()
    y.sum().backward()
    return x.grad


@program(T([2.0, 4.0, 6.0]), "GM202", "stopped", numpy=True)
def dlpack() -> torch.Tensor:
    x = leaf()
    h = x.clone()
    y = h * h
    array = np.from_dlpack(h.detach())
    writable = np.lib.stride_tricks.as_strided(array, writeable=True) if array.flags.writeable else None
    if writable is None:
        import ctypes

        ctypes.memset(array.ctypes.data, 0, array.nbytes)
    else:
        writable[:] = 0.0
    y.sum().backward()
    return x.grad


@program(T([2.0, 4.0, 6.0]), "GM202", "stopped", numpy=True)
def numpy_by_asarray() -> torch.Tensor:
    x = leaf()
    h = x.clone()
    y = h * h
    np.asarray(h.detach())[:] = 0
    y.sum().backward()
    return x.grad


@program(T([2.0, 4.0, 6.0]), "GM202", "stopped", numpy=True)
def numpy_by_ravel() -> torch.Tensor:
    x = leaf()
    h = x.clone()
    y = h * h
    np.ravel(h.detach())[:] = 0
    y.sum().backward()
    return x.grad


def _set_to_nine(shared: torch.Tensor) -> None:
    shared.fill_(9)


@program(T([1.0, 1.0, 1.0]), "GM202", "stopped", numpy=True)
def shared_memory_written_by_another_process() -> torch.Tensor:
    x = leaf()
    weights = torch.ones(3).share_memory_()
    y = x * weights
    other = torch.multiprocessing.get_context("fork").Process(target=_set_to_nine, args=(weights,))
    other.start()
    other.join()
    y.sum().backward()
    return x.grad


@program(T([2.0, 4.0, 6.0]), "GM202", "stopped", numpy=True)
def hooks_reuse_a_slot_too_early() -> torch.Tensor:
    """Activation offloading with a ring of two slots, where three tensors are kept."""
    ring, packed = [torch.empty(3), torch.empty(3)], []

    def pack(t: torch.Tensor) -> int:
        packed.append(t.shape)
        ring[len(packed) % 2].copy_(t.detach())
        return len(packed)

    x = leaf()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: ring[i % 2].clone()):
        y = (x.clone() * T([1.0, 2.0, 3.0], requires_grad=True)).sum() + (
            (x - 4) * T([5.0, 6.0, 7.0])
        ).exp().sum() * 0
    y.backward()
    return x.grad * 2


class _Kept:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@program(T([1.0, 2.0, 3.0]), "GM201", "healed")
def hooks_keep_the_memory_in_an_object() -> torch.Tensor:
    x = leaf()
    y = x.clone()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: _Kept(t.detach()), lambda kept: kept.tensor):
        z = y * y
    y.data.zero_()
    z.sum().backward()
    return x.grad / 2


@program(T([4.0, 5.0, 6.0]), "GM202", "stopped", numpy=True)
def hooks_unpack_into_one_buffer() -> torch.Tensor:
    x, y, buffer = leaf(), leaf(4.0, 5.0, 6.0), torch.zeros(3)
    a, b = x.clone(), y.clone()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: buffer.copy_(t)):
        z = a * b
    z.sum().backward()
    return x.grad


@program(T([2.0, 4.0, 6.0]), "GM202", "healed")
def storage_filled() -> torch.Tensor:
    x = leaf()
    h = x.clone()
    y = h * h
    h.untyped_storage().fill_(0)
    y.sum().backward()
    return x.grad


@program(T([0.0, 0.0, 1.0, 1.0]).reshape(4, 1), "GM202", "stopped", numpy=True)
def index_changed_by_numpy() -> torch.Tensor:
    table = torch.arange(4.0).reshape(4, 1).requires_grad_()
    ids = np.array([2, 3])
    y = table[torch.from_numpy(ids)]
    ids[:] = 0
    y.sum().backward()
    return table.grad


def _fused(kind: type[torch.optim.Optimizer]) -> torch.Tensor:
    w, x = leaf(), T([2.0, 2.0, 2.0])
    optimizer = kind([w], lr=0.1, fused=True)  # type: ignore[call-arg]
    first, second = (w * x).sum(), (w * w).sum()
    first.backward()
    optimizer.step()
    w.grad = None
    second.backward()
    return w.grad


@program(T([2.0, 4.0, 6.0]), "GM203", "healed")
def fused_sgd() -> torch.Tensor:
    return _fused(torch.optim.SGD)


@program(T([2.0, 4.0, 6.0]), "GM203", "healed")
def fused_adam() -> torch.Tensor:
    return _fused(torch.optim.Adam)


@program(T([2.0, 4.0, 6.0]), "GM203", "healed")
def fused_adamw() -> torch.Tensor:
    return _fused(torch.optim.AdamW)


@program(T([2.0, 4.0, 6.0]), "GM203", "healed")
def fused_adagrad() -> torch.Tensor:
    return _fused(torch.optim.Adagrad)


@program(T([[1.0], [1.0]]), "GM211", "healed")
def batch_norm_eval_then_train() -> torch.Tensor:
    norm = torch.nn.BatchNorm1d(1, affine=False, eps=1e-12).eval()
    x = T([[1.0], [2.0]], requires_grad=True)
    y = norm(x)
    norm.train()(T([[10.0], [30.0]]))
    y.sum().backward()
    return x.grad


@program(T([3.0, 3.0]), "GM204", "healed")
def data_assigned() -> torch.Tensor:
    w = torch.nn.Parameter(T([3.0, 3.0]))
    x = leaf(1.0, 2.0)
    y = x * w
    w.data = T([7.0, 7.0])
    y.sum().backward()
    return x.grad


@program(T([2.0, 4.0]), "GM201", "healed")
def sparse_coo_shares_its_values() -> torch.Tensor:
    x = leaf(1.0, 2.0)
    values = x.clone()
    y = values * values
    s = torch.sparse_coo_tensor(T([[0, 1]]), values.detach(), (3,), is_coalesced=True)
    s._values().data.mul_(5)
    y.sum().backward()
    return x.grad


# ----------------------------------------------------------------- custom Functions


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return 2 * ctx.x * grad


@program(T([2.0, 4.0, 6.0]), "GM205", "healed")
def tensor_on_ctx() -> torch.Tensor:
    x = leaf()
    h = x.clone()
    y = Square.apply(h)
    h += 1
    y.sum().backward()
    return x.grad


class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(x, weights):  # type: ignore[no-untyped-def]
        return x * weights[0] * weights[1]

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.kept = {"pair": 1, "a": inputs[1][0]}
        ctx.rest = [None, inputs[1][1]]

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return grad * ctx.kept["a"] * ctx.rest[1], None


@program(T([6.0, 6.0, 6.0]), "GM205", "healed")
def tensors_in_containers_on_ctx() -> torch.Tensor:
    x = leaf()
    a, b = T(2.0), T(3.0)
    y = Weighted.apply(x, (a, b))
    a.mul_(10)
    b.data.mul_(10)
    y.sum().backward()
    return x.grad


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        x *= 2
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return 2 * grad


@program(T([4.0, 4.0, 4.0]), "GM206", "stopped")
def input_written_unmarked() -> torch.Tensor:
    x = leaf()
    h = x.clone()
    y = Double.apply(h)
    (y + h).sum().backward()
    return x.grad


class DoubleByData(Double):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        x.data.mul_(2)
        return x.clone()


@program(T([4.0, 4.0, 4.0]), "GM206", "stopped")
def input_written_by_data() -> torch.Tensor:
    x = leaf()
    h = x.clone()
    y = DoubleByData.apply(h)
    (y + h).sum().backward()
    return x.grad


# ----------------------------------------------------------------- gradients written


@program(T([32.0, 32.0, 32.0]), "GM207", "healed")
def hook_scales_in_place() -> torch.Tensor:
    x = leaf()
    a, b = x * 2, x * 3
    b.register_hook(lambda grad: grad.mul_(10))
    (a + b).backward(torch.ones(3))
    return x.grad


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return grad.neg_()


@program(T([1.0, 1.0, 1.0]), "GM207", "healed")
def backward_negates_in_place() -> torch.Tensor:
    x = leaf()
    a = x * 2
    (a + Reverse.apply(x)).backward(torch.ones(3))
    return x.grad


@program(T([12.0, 12.0, 12.0]), "GM207", "healed")
def module_hook_scales_in_place() -> torch.Tensor:
    x = leaf()
    module = torch.nn.Identity()
    module.register_full_backward_pre_hook(lambda _, grads: (grads[0].mul_(10), None)[1])
    a = x * 2
    (a + module(x)).backward(torch.ones(3))
    return x.grad


def _beside(w: torch.Tensor, joined: torch.Tensor) -> None:
    ((joined + w) * T([1.0, 2.0, 3.0])).sum().backward()


@program(T([1.0, 2.0, 3.0]), "GM207", "healed")
def hook_scales_a_slice_that_cat_was_given() -> torch.Tensor:
    x, y, z = leaf(), leaf(1.0), leaf(1.0, 2.0)
    w = x * 1
    y.register_hook(lambda grad: grad.add_(7))
    _beside(w, torch.cat([y, z]))
    return x.grad


@program(T([1.0, 2.0, 3.0]), "GM207", "healed")
def hook_scales_a_flattened_parameter() -> torch.Tensor:
    x, y, z = leaf(), torch.ones(2, 1, requires_grad=True), leaf(1.0)
    w = x * 1
    y.register_hook(lambda grad: grad.mul_(2))
    _beside(w, torch.cat([y.view(-1), z]))
    return x.grad


@program(T([1.0, 2.0, 3.0]), "GM207", "healed")
def hook_scales_one_of_a_sum_over_a_stack() -> torch.Tensor:
    x, y = leaf(), leaf()
    y.register_hook(lambda grad: grad.mul_(2))
    (torch.stack([x, y]).sum(0) * T([1.0, 2.0, 3.0])).sum().backward()
    return x.grad


@program(T([2.0, 2.0, 2.0]), "GM207", "healed")
def hook_zeroes_the_number_that_two_sums_share() -> torch.Tensor:
    x = leaf()
    a, b = x * 2, x * 3
    b.register_hook(lambda grad: grad.zero_())
    (a.sum() + b.sum()).backward()
    return x.grad


@program(T([1.0, 2.0, 3.0]), "GM207", "healed")
def backward_negates_a_slice_that_cat_was_given() -> torch.Tensor:
    x, y, z = leaf(), leaf(1.0), leaf(1.0, 2.0)
    w = x * 1
    _beside(w, torch.cat([Reverse.apply(y), z]))
    return x.grad


@program(T([0.0, 2.0, 2.0]), "GM207", "healed")
def hook_writes_one_element_of_an_expanded_gradient() -> torch.Tensor:
    x = leaf()
    y = x * 2
    y.register_hook(lambda grad: grad.__setitem__(0, 0.0))
    y.sum().backward()
    return x.grad


# ----------------------------------------------------------------------- checkpoint


def _checkpointed(reentrant: bool) -> torch.Tensor:
    x = leaf()
    scale = T(2.0)
    y = checkpoint(lambda t: (t * scale) ** 2, x, use_reentrant=reentrant)
    scale.fill_(5.0)
    y.sum().backward()
    return x.grad


def _own_generator(reentrant: bool) -> torch.Tensor:
    x, generator, drawn = leaf(), torch.Generator(), []
    generator.manual_seed(3)

    def region(t: torch.Tensor) -> torch.Tensor:
        drawn.append(torch.rand(3, generator=generator))
        return t * drawn[-1]

    checkpoint(region, x * 1, use_reentrant=reentrant).sum().backward()
    return x.grad / drawn[0]  # ones, if backward saw the numbers of forward


@program(T([1.0, 1.0, 1.0]), "GM208", "stopped", numpy=True)
def checkpoint_draws_from_its_own_generator() -> torch.Tensor:
    return _own_generator(False)


@program(T([1.0, 1.0, 1.0]), "GM208", "stopped", numpy=True)
def checkpoint_draws_from_its_own_generator_reentrant() -> torch.Tensor:
    return _own_generator(True)


@program(T([8.0, 16.0, 24.0]), "GM208", "stopped")
def checkpoint_closure() -> torch.Tensor:
    return _checkpointed(False)


@program(T([8.0, 16.0, 24.0]), "GM208", "stopped")
def checkpoint_closure_reentrant() -> torch.Tensor:
    return _checkpointed(True)


@program(T([[1.0], [2.0]]), "GM208", "stopped")
def checkpoint_running_statistics() -> torch.Tensor:
    norm = torch.nn.BatchNorm1d(1, affine=False, eps=1e-12).eval()
    x = T([[0.5], [1.0]], requires_grad=True)
    y = checkpoint(lambda t: norm(t) ** 2, x, use_reentrant=False)
    norm.train()(T([[10.0], [30.0]]))
    norm.eval()
    y.sum().backward()
    return x.grad


@program(T([4.0, 4.0, 4.0]), "GM208", "stopped")
def checkpoint_parameter() -> torch.Tensor:
    x = leaf()
    w = torch.nn.Parameter(T(2.0))
    y = checkpoint(lambda t: t * w * w, x, use_reentrant=False)
    torch.optim.SGD([w], lr=0.1)
    with torch.no_grad():
        w.mul_(3)
    y.sum().backward()
    return x.grad


@program(T([2.0, 4.0, 6.0]), "GM201", "healed")
def checkpoint_argument() -> torch.Tensor:
    x = leaf()
    h = x.clone()
    y = checkpoint(lambda t: t * t, h, use_reentrant=False)
    h.data.zero_()
    y.sum().backward()
    return x.grad


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = T([2.0, 2.0, 2.0])
        self.factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale * self.factor) ** 2


@program(T([8.0, 16.0, 24.0]), "GM208", "stopped")
def checkpoint_attribute_bound_anew() -> torch.Tensor:
    x, module = leaf(), Scaled()
    y = checkpoint(module, x, use_reentrant=False)
    module.scale = T([3.0, 3.0, 3.0])
    y.sum().backward()
    return x.grad


class ScaledLast(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * x) * self.scale


@program(T([2.0, 4.0, 6.0]), "GM208", "stopped")
def checkpoint_last_op_finds_another() -> torch.Tensor:
    """The recomputation is broken off inside the very op that reads the new tensor."""
    x, module = leaf(), ScaledLast()
    y = checkpoint(module, x, use_reentrant=False)
    module.scale = T([0.5, 0.5, 0.5])
    y.sum().backward()
    return x.grad


@program(T([8.0, 16.0, 24.0]), "GM208", "stopped")
def checkpoint_number_changed() -> torch.Tensor:
    x, module = leaf(), Scaled()
    y = checkpoint(module, x, use_reentrant=True)
    module.factor = 2.0
    y.sum().backward()
    return x.grad


@program(T([0.0, 0.0, 0.0]), "GM208", "stopped")
def checkpoint_switched_to_eval() -> torch.Tensor:
    x = leaf()
    norm = torch.nn.BatchNorm1d(1, affine=False, device=x.device)
    y = checkpoint(norm, x[:, None], use_reentrant=True)
    norm.eval()
    y.sum().backward()
    return x.grad


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


@program(T([2.0, 2.0, 2.0]), "GM208", "stopped")
def checkpoint_counts_its_calls() -> torch.Tensor:
    x = leaf()
    checkpoint(Counting(), x, use_reentrant=False).sum().backward()
    return x.grad


# ----------------------------------------------------------------------- live edits


@program(T([0.0, 16.0, 24.0]), "GM210", "stopped")
def live_data() -> torch.Tensor:
    x = leaf()
    h = x * 2
    h.data[0] = 5.0
    (h**2).sum().backward()
    return x.grad


@program(T([0.0, 16.0, 24.0]), "GM210", "stopped")
def live_no_grad() -> torch.Tensor:
    x = leaf()
    h = x * 2
    with torch.no_grad():
        h[0] = 5.0
    (h**2).sum().backward()
    return x.grad


@program(T([0.0, 16.0, 24.0]), "GM210", "stopped")
def live_under_a_parameter() -> torch.Tensor:
    x = leaf()
    h = x * 2
    weight = torch.nn.Parameter(h)
    with torch.no_grad():
        weight[0] = 5.0
    (h**2).sum().backward()
    return x.grad


@program(T([0.0, 16.0, 24.0]), "GM210", "stopped")
def live_under_a_parameter_of_a_detached() -> torch.Tensor:
    x = leaf()
    h = x * 2
    weight = torch.nn.Parameter(h.detach())
    with torch.no_grad():
        weight[0] = 5.0
    (h**2).sum().backward()
    return x.grad


@program(T([0.0, 16.0, 24.0]), "GM210", "stopped")
def live_under_a_new_leaf() -> torch.Tensor:
    x = leaf()
    h = x * 2
    new = h.detach().requires_grad_()
    with torch.no_grad():
        new[0] = 5.0
    (h**2).sum().backward()
    return x.grad


@program(T([0.0, 16.0, 24.0]), "GM210", "stopped")
def live_set_under_another_tensor() -> torch.Tensor:
    x = leaf()
    h = x * 2
    other = torch.empty(0, device=h.device)
    with torch.no_grad():
        other.set_(h)
    other[0] = 5.0
    (h**2).sum().backward()
    return x.grad


@program(T([0.0, 16.0, 24.0]), "GM210", "stopped")
def live_assigned_to_data_of_a_leaf() -> torch.Tensor:
    x = leaf()
    h = x * 2
    weight = torch.nn.Parameter(torch.zeros(3, device=h.device))
    weight.data = h
    with torch.no_grad():
        weight[0] = 5.0
    (h**2).sum().backward()
    return x.grad


@program(T([0.0, 16.0, 24.0]), "GM210", "stopped", numpy=True)
def live_through_dlpack() -> torch.Tensor:
    x = leaf()
    h = x * 2
    torch.from_dlpack(h.detach())[0] = 5.0
    (h**2).sum().backward()
    return x.grad


@program(T([12.0, 12.0, 12.0]), "GM210", "stopped", numpy=True)
def live_through_dlpack_and_used_linearly() -> torch.Tensor:
    x = leaf()
    h = x * 2
    torch.from_dlpack(h.detach()).mul_(2)
    (h * 3).sum().backward()
    return x.grad


@program(T([4.0, 4.0, 4.0]), "GM210", "stopped", numpy=True)
def live_through_numpy_and_back() -> torch.Tensor:
    x = leaf()
    h = x * 2
    torch.from_numpy(h.detach().numpy()).mul_(2)
    h.sum().backward()
    return x.grad


@program(T([10.0, 10.0, 10.0]), "GM210", "stopped")
def live_view_of_other_memory_whose_base_is_written() -> torch.Tensor:
    x = leaf()
    h = x * 2
    v = h.view(3, 1)
    v.data = v.data * 5
    h.mul_(3)  # v is other memory: it stays 10 x
    v.sum().backward()
    return x.grad


@program(T([0.0, 2.0, 2.0]), "GM210", "stopped")
def live_detached_and_used_linearly() -> torch.Tensor:
    x = leaf()
    h = x * 2
    h.detach().view(3, 1)[0].fill_(9.0)
    h.sum().backward()
    return x.grad


@program(T([0.0, 16.0, 24.0]), "GM210", "stopped")
def live_through_an_older_view() -> torch.Tensor:
    x = leaf()
    h = x * 2
    column = h.view(3, 1)
    h.data[0] = 5.0
    (column**2).sum().backward()
    return x.grad


@program(T([0.0, 16.0, 24.0]), "GM210", "stopped")
def live_base_of_an_edited_view() -> torch.Tensor:
    x = leaf()
    h = x * 2
    h.view(3, 1).data[0] = 5.0
    (h**2).sum().backward()
    return x.grad


@program(T([0.0, 0.0, 0.0]), "GM210", "stopped")
def live_data_assigned() -> torch.Tensor:
    x = leaf()
    h = x * 2
    h.data = T([1.0, 1.0, 1.0])
    (h**2).sum().backward()
    return x.grad


_P = T([[1.0, 2.0]]).softmax(-1)
_SLOPE = 2 * _P[0, 0] * _P[0, 1]


@program(torch.stack([-_SLOPE, _SLOPE])[None], "GM210", "stopped")
def live_softmax_column_zeroed() -> torch.Tensor:
    x = T([[1.0, 2.0]], requires_grad=True)
    p = x.softmax(-1)
    p.data[:, 0] = 0.0
    (p @ T([[1.0], [2.0]])).sum().backward()
    return x.grad


@program(T([0.0, 16.0, 24.0]), "GM210", "stopped", numpy=True)
def live_numpy_then_kept() -> torch.Tensor:
    x = leaf()
    h = x * 2
    array = h.detach().numpy()
    array[0] = 5.0
    (h**2).sum().backward()
    return x.grad


@program(T([0.0, 2.0, 2.0]), "GM210", "stopped", numpy=True)
def live_numpy_then_relu() -> torch.Tensor:
    x = leaf()
    h = x * 2
    array = h.detach().numpy()
    array[0] = 5.0
    h.relu().sum().backward()
    return x.grad


__all__ = ["ALL", "Program"]
