"""Zeros of forward mode have a storage and no memory, and inside a transform whatever is made of a tensor is a wrapper."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.func import jvp

import gradmend
import warm

_HESSIAN = """
import torch, gradmend
W = torch.ones(5, 3, requires_grad=True)
with gradmend.{context}:
    H = torch.func.hessian(lambda x: (W @ x).tanh().sum())(torch.ones(3))
H.sum().backward()
print(W.grad.sum().item())
"""
_ZEROS = """
import torch, gradmend
w = torch.ones(5, requires_grad=True)
with gradmend.{context}:
    torch.autograd.grad((w * torch._efficientzerotensor((5,))).sum(), w)
    y = w * torch._efficientzerotensor((5,))
y.sum().backward()
print(w.grad.sum().item())
"""


# Read as memory they end the process: so in one of its own.
@pytest.mark.parametrize("program", [_HESSIAN, _ZEROS], ids=["hessian", "zeros"])
@pytest.mark.parametrize("context", ["watch()", "watch(paranoid=True)", "heal()", "audit()"])
def test_zeros_without_memory_are_no_bytes_to_read(program: str, context: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(program.format(context=context))
    run = warm.run([sys.executable, script])
    assert run.returncode == 0, run.stderr
    script.write_text(program.replace("with gradmend.{context}:", "if True:"))
    assert run.stdout == warm.run([sys.executable, script], check=True).stdout


def test_a_context_may_be_left_inside_a_transform() -> None:
    w = torch.ones(5, requires_grad=True)
    x = torch.full((5,), 0.5)

    def watched(x: torch.Tensor) -> torch.Tensor:
        with gradmend.watch():
            return (w * x).tanh().sum()

    out, tangent = jvp(watched, (x,), (x,))
    assert torch.equal(tangent, (x * (1 - torch.tanh(x) ** 2)).sum())
    out.backward()
    assert torch.equal(w.grad, x * (1 - torch.tanh(x) ** 2))  # type: ignore[arg-type]
