"""`.grad` of a sparse result is None, and Python's error names only None: the story names the values."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import warm
from gradmend.story.failures import diagnose

BAD = """
import torch
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]]), values, (2, 3))
A.sum().backward()
print(A.grad.values())
"""


@pytest.mark.parametrize("door", ["run", "install"])
def test_the_story_is_told_by_run_and_install(door: str, tmp_path: Path) -> None:
    program = tmp_path / "bad.py"
    program.write_text(BAD if door == "run" else f"import gradmend\ngradmend.install()\n{BAD}")
    how = ["-m", "gradmend", "run"] if door == "run" else []
    done = warm.run([sys.executable, *how, str(program)])
    said = done.stdout + done.stderr
    assert done.returncode == 1 and "GM303" in said and "Read `values.grad`, not `A.grad`" in said
    assert "AttributeError: 'NoneType' object has no attribute 'values'" in said


def _sparse(grad: bool) -> torch.Tensor:
    return torch.sparse_coo_tensor([[0], [1]], torch.ones(1, requires_grad=grad), (2, 2))


def test_it_is_told_of_sparse_results_alone() -> None:
    model = SimpleNamespace(A=_sparse(True))
    dense, leaf = torch.ones(2, requires_grad=True) * 2, _sparse(False).requires_grad_()
    nothing = None

    def in_source(f: object) -> bool:
        try:
            f()  # type: ignore[operator]
        except AttributeError as error:
            return diagnose(error) is not None
        raise AssertionError

    A = model.A
    assert in_source(lambda: A.grad.values())
    assert in_source(lambda: model.A.grad.clamp_(max=1))
    assert not in_source(lambda: dense.grad.clamp_(max=1))
    assert not in_source(lambda: leaf.grad.values())
    assert not in_source(lambda: nothing.values())  # type: ignore[attr-defined]
