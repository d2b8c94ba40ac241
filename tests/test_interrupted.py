"""Contexts that are interrupted while they are entered or left, or left by another thread: nothing of ours stays."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

import gradmend
from gradmend.capture.hooks import arming
from gradmend.capture.taps import switch


def _plain_again() -> None:
    assert not hasattr(torch.Tensor.add_, "__gradmend_original__")
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None  # type: ignore[attr-defined]
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def _step() -> None:
    with gradmend.heal():
        torch.ones(3, requires_grad=True).exp().sum().backward()


@pytest.mark.parametrize("name", ["arm", "disarm"])
@pytest.mark.parametrize("module", [switch, arming], ids=["taps", "hooks"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_signal_in_the_middle_waits(
    module: ModuleType, name: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = getattr(module, name)

    def signalled() -> None:
        if late:
            really()
        signal.raise_signal(signal.SIGINT)
        if not late:
            really()

    was = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(module, name, signalled)
        with pytest.raises(KeyboardInterrupt):
            _step()
        monkeypatch.undo()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        _plain_again()
        _step()
        _plain_again()
    finally:
        signal.signal(signal.SIGINT, was)


@pytest.mark.parametrize("name", ["arm", "disarm"])
def test_an_error_in_the_middle_undoes_the_rest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    really = getattr(arming, name)

    def failing() -> None:
        really()
        raise MemoryError

    monkeypatch.setattr(arming, name, failing)
    with pytest.raises(MemoryError):
        _step()
    monkeypatch.undo()
    _plain_again()


def test_a_context_that_another_thread_leaves() -> None:
    x = torch.ones(3, requires_grad=True)

    def suspended() -> Iterator[torch.Tensor]:
        with gradmend.heal():
            yield x.exp()

    it = suspended()
    next(it)
    thread = threading.Thread(target=it.close)  # type: ignore[attr-defined]
    thread.start()
    thread.join()
    y = x.exp()
    y += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()  # PyTorch checks nothing below hooks: ours do it
    _step()
    _plain_again()
