"""While an optimizer steps, what torch's own code writes is passed on, and what the program writes is heard."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from modes import Seeing
from torch import nn

import gradmend
from gradmend.capture import edge, recorder
from gradmend.capture.taps import hub
from gradmend.capture.taps.hub import LEDGER

CONTEXTS = [gradmend.watch, gradmend.heal]


class Own(torch.optim.Optimizer):
    """One of the program's."""

    def __init__(self, parameters: Any, within: Callable[[], Any] = lambda: None) -> None:
        super().__init__(parameters, {})
        self.within = within

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.enable_grad():
            self.given = closure() if closure else self.within()
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.add_(p.grad, alpha=-0.1)


def _train(optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    sum(p.square().sum() for g in optimizer.param_groups for p in g["params"]).backward()
    optimizer.step()


@pytest.fixture
def ring() -> Iterator[recorder.Recorder]:
    """With no Save alive of the tests before: while one lives, a step is heard write by write."""
    for _ in range(100):
        gc.collect()
        LEDGER.bury()
        LEDGER.settle()
        if "saves" not in hub.awake:
            break
        gc.unfreeze()
        time.sleep(0.01)
    gradmend.install()
    found = recorder.current()
    assert found is not None
    yield found
    gradmend.uninstall()


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Adafactor"])
@pytest.mark.parametrize("foreach", [False, True])
def test_a_step_of_torchs_is_one_record(kind: str, foreach: bool, ring: recorder.Recorder) -> None:
    layer = nn.Linear(3, 3)
    optimizer = getattr(torch.optim, kind)(layer.parameters(), foreach=foreach)
    for _ in range(2):
        at = len(ring.ring)
        _train(optimizer)
        ((op, _, places, *_),) = list(ring.ring)[at:]
        assert op == f"{kind}.step"
        assert [p[:2] for p in recorder.unpacked(places)] == [
            (p.data_ptr(), p.nbytes) for p in layer.parameters()
        ]
    assert not edge.quiet


def test_a_step_of_the_programs_own_is_heard_write_by_write(ring: recorder.Recorder) -> None:
    optimizer = Own(nn.Linear(3, 3).parameters())
    at = len(ring.ring)
    _train(optimizer)
    assert [op for op, *_ in list(ring.ring)[at:]] == ["add_", "add_", "Own.step"]


def test_a_mode_sees_the_step_and_not_us() -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1, momentum=0.9)
    _train(optimizer)
    with Seeing() as plain:
        _train(optimizer)
    gradmend.install()
    try:
        with Seeing() as recorded:
            _train(optimizer)
    finally:
        gradmend.uninstall()
    assert recorded.names == plain.names


@pytest.mark.parametrize("layers", [2, 40])
def test_a_step_that_a_save_outlives_is_heard(layers: int) -> None:
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradmend.watch() as session:
        later = model(torch.ones(2, 3)).square().sum()
        _train(optimizer)
        with pytest.raises(gradmend.ConflictError):
            later.backward()
    assert [c.rule for c in session.conflicts] == ["GM104"]


# ------------------------------------------------------------------ live edits in the middle of a step


def _parameter() -> nn.Parameter:
    return nn.Parameter(torch.tensor([1.0, 2.0]))


def _edited(p: torch.Tensor) -> torch.Tensor:
    """Its gradient is wrong in plain PyTorch: autograd sees no write through `.data`."""
    h = p + 1
    h.data.mul_(3)
    return (h * h).sum()


def _with_hook(register: str) -> None:
    p, q = _parameter(), _parameter()
    q.grad = torch.ones(2)
    h = p + 1
    optimizer = torch.optim.SGD([q], lr=0.1)

    def edit(*_: Any) -> None:
        h.data.mul_(3)

    getattr(optimizer, register)(edit)
    optimizer.step()
    (h * h).sum().backward()


def _after_a_step_that_raised() -> None:
    p, q = _parameter(), _parameter()
    h = p + 1
    q.grad = torch.ones(2).to_sparse()
    with pytest.raises(RuntimeError, match="does not support sparse"):
        torch.optim.Adam([q]).step()
    h.data.mul_(3)
    (h * h).sum().backward()


def _inside_a_step() -> None:
    p = _parameter()
    Own([_parameter()], lambda: _edited(p).backward()).step()


def _in_a_closure() -> None:
    p = _parameter()

    def closure() -> float:
        p.grad = None
        loss = _edited(p)
        loss.backward()
        return loss.item()

    torch.optim.LBFGS([p]).step(closure)


def _in_another_thread() -> None:
    p, q = _parameter(), _parameter()
    q.grad = torch.ones(2)
    inside, go = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        inside.set()
        go.wait(5)

    optimizer = torch.optim.SGD([q], lr=0.1)
    optimizer.register_step_pre_hook(wait)  # called after ours
    thread = threading.Thread(target=optimizer.step)
    thread.start()
    inside.wait(5)
    h = p + 1
    h.data.mul_(3)
    go.set()
    thread.join()
    (h * h).sum().backward()


def _of_a_tensor_with_a_history() -> None:
    p = _parameter()
    z = p + 1
    z.retain_grad()
    optimizer = torch.optim.SGD([z], lr=0.1, weight_decay=5.0)
    z.sum().backward()
    optimizer.step()
    (z * z).sum().backward()


def _over_the_memory_of_one() -> None:
    p = _parameter()
    h = p + 1
    w = nn.Parameter(h.data)
    w.grad = torch.ones(2)
    torch.optim.SGD([w], lr=0.1).step()
    (h * h).sum().backward()


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(
    "program",
    [
        lambda: _edited(_parameter()).backward(),
        lambda: _with_hook("register_step_post_hook"),
        lambda: _with_hook("register_step_pre_hook"),
        _after_a_step_that_raised,
        _inside_a_step,
        _in_a_closure,
        _in_another_thread,
        _of_a_tensor_with_a_history,
        _over_the_memory_of_one,
    ],
    ids="plain post-hook pre-hook raised inside closure thread history memory".split(),
)
def test_an_edit_is_told_wherever_it_is_made(context: Any, program: Callable[[], None]) -> None:
    with context() as session, pytest.raises(gradmend.ConflictError):
        program()
    assert [c.rule for c in session.conflicts] == ["GM210"]


# --------------------------------------------------------------- what the program's own code writes in a step


def _line_of(program: Callable[[], Any]) -> int:
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        program()
    conflict = caught.value.__gradmend__  # type: ignore[attr-defined]
    (culprit,) = conflict.culprits
    found: int = culprit.line
    return found


def _freed() -> int:
    b = torch.zeros(1000)
    b.add_(1)
    return b.data_ptr()


@pytest.mark.parametrize("where", ["step", "hook", "foreach"])
def test_install_names_the_line_and_no_tensor_of_an_earlier_life(where: str, ring: recorder.Recorder) -> None:
    p, x = _parameter(), torch.ones(1000, requires_grad=True)
    p.grad = torch.ones(2)
    optimizer = torch.optim.SGD([p], lr=0.1)
    lines = []

    def write(s: torch.Tensor) -> None:
        lines.append(sys._getframe().f_lineno + 1)
        torch._foreach_zero_([s, torch.eye(2).to_sparse()] if where == "foreach" else [s])

    def program() -> None:
        was = _freed()
        s = torch.zeros(1000)
        loss = (x * s).sum()
        if s.data_ptr() != was:
            lines.append(0)
        if where == "step":
            Own([p], lambda: write(s)).step()
        elif where == "hook":
            optimizer.register_step_post_hook(lambda *_: write(s))
            optimizer.step()
        else:
            write(s)
        loss.backward()

    assert _line_of(program) in lines


def test_a_write_before_the_save_is_not_blamed(ring: recorder.Recorder) -> None:
    x = torch.ones(1000, requires_grad=True)
    _freed()
    s = torch.zeros(1000)
    loss = (x * s).sum()
    before = list(ring.ring)
    s.add_(1)
    ring.ring.clear()
    ring.ring.extend(before)  # as if nobody had seen that write
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        loss.backward()
    assert not caught.value.__gradmend__.culprits  # type: ignore[attr-defined]


class _NoGroups(Own):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del self.param_groups


class _OtherGroups(Own):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.param_groups[:] = [{"weights": []}]


class _None(Own):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.param_groups[0]["params"].append(None)


class _Mapping(Own):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.param_groups = {"all": 1}  # type: ignore[assignment]


def test_parameters_that_can_be_gone_through_once_are_left_to_the_optimizer(ring: recorder.Recorder) -> None:
    p = _parameter()
    p.grad = torch.ones(2)
    optimizer = torch.optim.SGD([p], lr=0.5)
    optimizer.param_groups[0]["params"] = iter([p])
    optimizer.step()
    assert p.tolist() == [0.5, 1.5]


@pytest.mark.parametrize("kind", [_NoGroups, _OtherGroups, _None, _Mapping])
def test_an_optimizer_may_keep_its_parameters_as_it_likes(kind: type[Own], ring: recorder.Recorder) -> None:
    optimizer = kind([_parameter()])
    optimizer.step()
    with gradmend.watch():
        kind([_parameter()]).step()
