"""Compiled functions that PyTorch refuses while it traces them: their Python runs, told once."""

from __future__ import annotations

import warnings

import pytest
import torch

import gradmend


def told(found, word: str) -> list[str]:
    return [str(w.message) for w in found if word in str(w.message)]


def refused(x):
    h = torch.sigmoid(x)
    h *= 2
    return h


def test_a_compiled_function_is_healed_at_its_own_line():
    torch._dynamo.reset()
    compiled = torch.compile(refused, backend="aot_eager")
    x = torch.tensor([0.5, 1.0], requires_grad=True)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with gradmend.heal() as session:
            for _ in range(2):
                x.grad = None
                compiled(x).sum().backward()
    s = torch.sigmoid(x.detach())
    torch.testing.assert_close(x.grad, 2 * s * (1 - s))
    assert len(told(found, "can't be compiled")) == 1
    (conflict,) = session
    assert conflict.culprits[0].line == refused.__code__.co_firstlineno + 2


def test_watch_tells_its_line():
    torch._dynamo.reset()
    compiled = torch.compile(refused, backend="aot_eager")
    with pytest.raises(gradmend.ConflictError) as stop, gradmend.watch():
        compiled(torch.ones(2, requires_grad=True)).sum().backward()
    assert stop.value.conflict.culprits[0].line == refused.__code__.co_firstlineno + 2


def test_other_errors_of_a_backend_stay():
    torch._dynamo.reset()

    def broken(graph, inputs):
        raise RuntimeError("no such device")

    compiled = torch.compile(refused, backend=broken)
    with pytest.raises(RuntimeError, match="no such device"), gradmend.heal():
        compiled(torch.ones(2, requires_grad=True))


def test_dynamo_is_as_it_was_afterwards():
    from torch._dynamo.convert_frame import ConvertFrame

    before = ConvertFrame.__call__
    with gradmend.heal():
        pass
    assert ConvertFrame.__call__ is before
