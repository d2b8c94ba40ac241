"""Every silent way: wrong under plain PyTorch, found by watch(), and healed or stopped by heal()."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from silent_programs import ALL, Program, checkpoint_counts_its_calls

import gradmend

every = pytest.mark.parametrize("program", ALL, ids=lambda p: p.name)


@every
def test_plain_pytorch_is_silently_wrong(program: Program) -> None:
    got = program.run()
    assert got.shape == program.right.shape
    assert not torch.allclose(got, program.right)


@every
def test_watch_tells(program: Program) -> None:
    with pytest.raises(gradmend.ConflictError) as told, gradmend.watch():
        program.run()
    conflict = told.value.conflict
    assert conflict.rule == program.rule
    assert conflict.kind == "silent"
    first = conflict.culprits[0]
    assert first.file.endswith("silent_programs.py")
    assert f"{program.rule}" in str(told.value)


@every
def test_heal_is_right_or_stops(program: Program) -> None:
    if program.heals == "stopped":
        with pytest.raises(gradmend.ConflictError), gradmend.heal():
            program.run()
        return
    with gradmend.heal() as session:
        got = program.run()
    assert torch.allclose(got, program.right)
    assert session.outcome == "healed"


def test_what_a_checkpointed_region_writes_itself_is_named() -> None:
    with pytest.raises(gradmend.ConflictError) as told, gradmend.watch():
        checkpoint_counts_its_calls()
    (write,) = told.value.conflict.writes
    assert write.op == "add_" and write.tensor.name == "self.calls"


def test_nothing_stays_patched() -> None:
    before = (torch.Tensor.register_hook, torch.nn.Module.register_full_backward_hook, torch.Tensor.detach)
    with gradmend.watch():
        assert torch.Tensor.register_hook is not before[0]
    assert before == (
        torch.Tensor.register_hook,
        torch.nn.Module.register_full_backward_hook,
        torch.Tensor.detach,
    )
    assert "__getattribute__" not in vars(torch.autograd.function.FunctionMeta)


def test_a_custom_function_may_be_called_like_a_view() -> None:
    """Its node is `SplitBackward`, PyTorch's own `SplitBackward0`."""

    class Split(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x.mul_(2)
            return x, x.sum(1)

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            return 2 * grads[0] + 2 * grads[1][:, None]

    h = torch.ones(4, 3, requires_grad=True) * 1
    with pytest.raises(gradmend.ConflictError) as told, gradmend.heal():
        y, s = Split.apply(h)
        (y.sum() + (h * h).sum() + s.square().sum()).backward()
    assert told.value.conflict.rule == "GM210"
