"""The device itself: it is what it claims to be, and does what programs of every day do."""

from __future__ import annotations

import signal

import pytest

from conftest import Child

_TOUCH = """
import ctypes, walled, torch
x = torch.ones(3, device=walled.register())
assert x.cpu().tolist() == [1, 1, 1]
{touch}
print("still here")
"""


@pytest.mark.parametrize(
    "touch",
    ["ctypes.string_at(x.data_ptr(), 4)", "ctypes.memset(x.data_ptr(), 0, 4)"],
    ids=["read", "write"],
)
def test_whoever_touches_its_memory_dies(child: Child, touch: str) -> None:
    done = child("-c", _TOUCH.format(touch=touch))
    assert done.returncode == -signal.SIGSEGV
    assert "still here" not in done.stdout


_TRAIN = """
import copy, io, pickle, threading, torch, walled
from torch import nn

device = walled.register()


def trained(where, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(72, 3))
    x = torch.randn(4, 1, 8, 8)
    net, x = net.to(where), x.to(where)
    optimizer = torch.optim.Adam(net.parameters(), **options)
    for _ in range(3):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    return net


for options in ({}, {"foreach": True}, {"foreach": False}, {"fused": True}):
    there, here = trained(device, **options), trained("cpu", **options)
    for a, b in zip(there.parameters(), here.parameters(), strict=True):
        assert a.device == device
        torch.testing.assert_close(a.cpu(), b)

file = io.BytesIO()
torch.save(there.state_dict(), file)
file.seek(0)
for name, t in torch.load(file).items():
    assert t.device == device and torch.equal(t, there.state_dict()[name])
x = torch.randn(5, device=device)
for again in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
    assert again.device == device and torch.equal(again, x)

# Backward runs in a thread of the engine's, as it does for CUDA.
names = []
w = torch.ones(3, device=device, requires_grad=True)
v = w * 2
v.register_hook(lambda g: names.append(threading.current_thread()))
v.sum().backward()
assert names[0] is not threading.main_thread()

try:
    torch.ones(3, device=device) + torch.ones(3)
except RuntimeError as error:
    assert "same device" in str(error)
else:
    raise AssertionError("devices were mixed")
"""


def test_it_trains_as_the_cpu_does(child: Child) -> None:
    done = child("-c", _TRAIN)
    assert done.returncode == 0, done.stderr[-3000:]


_LINE = """
import torch, walled, gradmend
device = walled.register()
x = torch.ones(3, device=device, requires_grad=True)


def double():
    y = (x * x * x).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    h = g * 1
    z = (h * h).sum()
    h.mul_(2)  # write
    z.backward()  # backward


try:
    with gradmend.watch():
        double()
except gradmend.ConflictError as error:
    c = error.conflict
    print(c.culprits[0].line, c.backward.line)
"""


def test_the_lines_are_told_from_a_thread_without_callers(child: Child) -> None:
    done = child("-c", _LINE)
    lines = _LINE.splitlines()
    wanted = [
        next(i for i, text in enumerate(lines, 1) if text.endswith(end)) for end in ("# write", "# backward")
    ]
    assert done.stdout.split() == [str(n) for n in wanted], done.stderr[-3000:]


_SECOND = """
import torch, walled, gradmend
device = walled.register()
x = torch.ones(3, device=device, requires_grad=True)
right = []
for context in (None, gradmend.heal()):
    y = x.clone()
    if context is None:
        (g,) = torch.autograd.grad((y**4).sum(), y, create_graph=True)
        kept = g.sin()
        torch.autograd.backward(kept.sum(), inputs=[x])
    else:
        x.grad = None
        with context as session:
            (g,) = torch.autograd.grad((y**4).sum(), y, create_graph=True)
            kept = g.sin()
            g.data.zero_()  # sin, and what the first backward saved, must not see it
            torch.autograd.backward(kept.sum(), inputs=[x])
        assert session.outcome == "healed", session.outcome
    right.append(x.grad.clone())
torch.testing.assert_close(*right)
print("same")
"""


def test_what_a_backward_in_that_thread_saves_is_healed(child: Child) -> None:
    done = child("-c", _SECOND)
    assert done.stdout.strip() == "same", done.stderr[-3000:]


_ENDS = """
import atexit, time, torch, walled, gradmend
device = walled.register()
atexit.unregister(time.sleep)  # the device's own, for programs without Gradmend
with gradmend.heal():
    w = v = torch.ones(3, device=device, requires_grad=True)
    for _ in range(200):
        v = v * w
    v.sum().backward()
"""


@pytest.mark.slow
def test_a_program_may_end_right_after_its_backward(child: Child) -> None:
    """Two in five of these were aborted while Python ended: the engine's thread still held Saves."""
    for _ in range(6):
        done = child("-c", _ENDS)
        assert done.returncode == 0, done.stderr[-3000:]
