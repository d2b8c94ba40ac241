"""Hooks of the program's own that hand back something else than they were given: an offload buffer used again."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import gradmend

pytestmark = pytest.mark.filterwarnings("ignore::gradmend.GradmendWarning")


class Pool:
    """Keeps what it is given in a few buffers. With too few of them one is used again before backward."""

    def __init__(self, buffers: int) -> None:
        self.buffers = [torch.zeros(3) for _ in range(buffers)]
        self.given: list[torch.Tensor] = []
        self.back: list[torch.Tensor] = []

    def pack(self, t: torch.Tensor) -> tuple[int, torch.Tensor]:
        buffer = self.buffers[len(self.given) % len(self.buffers)]
        buffer.copy_(t)
        self.given.append(buffer)
        return len(self.given) - 1, buffer

    def unpack(self, packed: tuple[int, torch.Tensor]) -> torch.Tensor:
        self.back.append(packed[1])
        return packed[1]


def program(buffers: int) -> tuple[torch.Tensor, Pool]:
    x = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    pool = Pool(buffers)
    with saved_tensors_hooks(pool.pack, pool.unpack):
        y = x.exp().sin().exp()  # each keeps one tensor
    y.sum().backward()
    return x.grad, pool


def right() -> torch.Tensor:
    x = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    x.exp().sin().exp().sum().backward()
    return x.grad


def test_a_buffer_that_is_used_again_is_wrong_in_silence_and_told():
    assert not torch.allclose(program(1)[0], right())
    with pytest.raises(gradmend.ConflictError) as stop, gradmend.watch():
        program(1)
    assert stop.value.conflict.kind == "silent"
    assert "buffer.copy_(t)" in open_line(stop.value.conflict.culprits[0])


def open_line(culprit) -> str:
    import linecache

    return linecache.getline(culprit.file, culprit.line)


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_healed_it_is_right(buffers):
    with gradmend.heal():
        got, _ = program(buffers)
    torch.testing.assert_close(got, right())


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
def test_enough_buffers_come_back_as_the_objects_they_are(context):
    with context() as session:
        got, pool = program(3)
    torch.testing.assert_close(got, right())
    assert all(a is b for a, b in zip(reversed(pool.given), pool.back, strict=True))
    assert not session.conflicts


def test_a_dict_of_tensors_is_looked_into():
    x = torch.ones(2, requires_grad=True)
    with gradmend.heal():
        with saved_tensors_hooks(lambda t: {"t": t}, lambda d: d["t"]):
            y = x * 3
            z = y * y
        y.mul_(2)
        z.sum().backward()
    assert x.grad.tolist() == [18.0, 18.0]
