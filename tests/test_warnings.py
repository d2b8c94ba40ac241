"""What stops nobody is not silent: one warning for each cause, at its line, and a Session that can be printed."""

from __future__ import annotations

import linecache
import warnings

import pytest
import torch

import gradmend


def overwritten(times: int) -> None:
    for _ in range(times):
        y = torch.ones(3, requires_grad=True).exp()
        y += 1
        y.sum().backward()


def test_healing_warns_once_for_each_cause():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with gradmend.heal() as session:
            overwritten(3)
    (one,) = [w for w in found if issubclass(w.category, gradmend.GradmendWarning)]
    assert one.filename == __file__ and "y += 1" in linecache.getline(__file__, one.lineno)
    assert "healed" in str(one.message)
    assert str(session).startswith("healed: 1 conflict\n") and "GM101" in str(session)
    assert "(3 times)" in str(session)


def test_what_pytorch_would_refuse_is_told():
    with gradmend.watch() as session:
        y = torch.zeros(3, requires_grad=True).exp()
        y.clamp_(0, 9)
        with pytest.warns(gradmend.GradmendWarning, match="although the gradient is right"):
            y.sum().backward()
    assert session.outcome == "clean" and len(session.conflicts) == 1


def test_a_clean_run_says_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with gradmend.heal() as session:
            torch.ones(3, requires_grad=True).exp().sum().backward()
    assert str(session) == "clean: 0 conflicts"
