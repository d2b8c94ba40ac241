"""Tensors that wrap others (DTensor, ragged, of somebody's own): their memory is that of what they wrap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

import gradmend


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def distributed() -> torch.Tensor:
    return distribute_tensor(torch.arange(1.0, 4.0), init_device_mesh("cpu", (1,)), [Replicate()])


def ragged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.arange(1.0, 3.0), torch.arange(2.0, 5.0)], layout=torch.jagged)


def twofold() -> torch.Tensor:
    return TwoTensor(torch.arange(1.0, 4.0), torch.arange(1.0, 4.0))


def inside(t: Any) -> torch.Tensor:
    if isinstance(t, DTensor):
        return t._local_tensor
    return t.a if isinstance(t, TwoTensor) else t._values


def total(t: Any) -> torch.Tensor:
    if isinstance(t, DTensor):
        return t.to_local().sum()
    return t.values().sum() if t.layout is torch.jagged else t.sum()


Make = Callable[[], torch.Tensor]
Write = Callable[[Any], object]
WRITES: dict[str, Write] = {
    "in place": lambda t: t.mul_(3),
    "operator": lambda t: t.__imul__(3),
    "through .data": lambda t: t.data.mul_(3),
    "what it wraps": lambda t: inside(t).mul_(3),
}
every = pytest.mark.parametrize("make", [distributed, ragged, twofold])


def program(make: Make, write: Write | None) -> torch.Tensor:
    x = make().requires_grad_()
    y = x.exp()
    loss = total(y * y)
    if write is not None:
        write(y)
    loss.backward()
    return inside(x.grad).clone()


@every
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_is_found_and_healed(make: Make, write: Write) -> None:
    right = program(make, None)
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        program(make, write)
    assert caught.value.conflict.culprits[0].file == __file__ and caught.value.conflict.rule != "GM110"
    with gradmend.heal() as session:
        torch.testing.assert_close(program(make, write), right)
    assert session.outcome == "healed"


@every
def test_nothing_is_said_of_what_stands(make: Make) -> None:
    right = program(make, None)
    with gradmend.watch() as session:
        torch.testing.assert_close(program(make, lambda t: torch.zeros(3).add_(1)), right)
    assert session.outcome == "clean" and not session.conflicts


class Hollow(torch.Tensor):
    """Wraps a tensor, and tells nobody which."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, grad: bool = False) -> Hollow:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=grad)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def bare(t: Any) -> Any:
            return t.inner if isinstance(t, Hollow) else t

        out = func(*map(bare, args), **{k: bare(v) for k, v in (kwargs or {}).items()})
        if func._schema.name.endswith("_"):
            return args[0]
        return Hollow(out) if isinstance(out, torch.Tensor) else out


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
def test_one_that_does_not_say_what_it_wraps(context: Any) -> None:
    with context(), pytest.raises(gradmend.GradmendError) as caught:
        y = Hollow(torch.ones(3), grad=True).exp()
        loss = (y * y).sum()
        y.mul_(3)
        loss.backward(Hollow(torch.ones(())))
    if context is gradmend.watch:
        assert caught.value.conflict.rule == "GM102"
    else:
        assert "Hollow can't be built again" in str(caught.value)
    with context() as session:
        x = Hollow(torch.ones(3), grad=True)
        x.exp().sum().backward(Hollow(torch.ones(())))
    assert session.outcome == "clean"
