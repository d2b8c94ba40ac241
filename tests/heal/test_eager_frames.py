"""Compiled and scripted functions that PyTorch refuses, or whose writes nobody sees: their Python runs, told once."""

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

    before = ConvertFrame.__call__, torch.jit.ScriptFunction.__dict__["__call__"]
    with gradmend.heal():
        pass
    assert (ConvertFrame.__call__, torch.jit.ScriptFunction.__dict__["__call__"]) == before


@torch.jit.script
def scaled_(t, s: float):
    if s > 0:
        t *= s
    return t


@torch.jit.script
def scaled(t, s: float):
    return t * s


def program(scale):
    x = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)
    y = x.exp()
    kept = y.pow(2).sum()
    scale(y, 3.0)
    (kept + y.sum()).backward()
    return x


def test_a_scripted_write_is_healed():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with gradmend.heal() as session:
            got = [program(scaled_) for _ in range(2)]
    for x in got:
        torch.testing.assert_close(x.grad, (2 * (2 * x).exp() + 3 * x.exp()).detach())
    assert session.outcome == "healed" and len(told(found, "is scripted")) == 1


def test_a_scripted_function_that_writes_nothing_stays_scripted():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with gradmend.heal():
            assert scaled(torch.ones(2), 2.0).tolist() == [2.0, 2.0]
            with torch.no_grad():
                scaled_(torch.ones(2), 2.0)
    assert not told(found, "is scripted")


def test_watch_still_stops_at_a_scripted_write():
    with pytest.raises(gradmend.ConflictError), gradmend.watch():
        program(scaled_)
