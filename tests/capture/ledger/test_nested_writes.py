"""Writes inside a Write, by a mode's handler say: the outer line is the one to tell."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gradmend


class Through(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _line(text):
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}"))


@pytest.mark.parametrize("outside", [False, True], ids=["mode inside", "mode outside"])
def test_the_line_is_the_program_s_and_not_the_mode_s(outside):
    def program():
        x = torch.ones(4, 3, requires_grad=True)
        b = x * 2
        c = b**2
        b[0].add_(1)  # the write
        (b.sum() + c.sum()).backward()

    first, second = (Through(), gradmend.watch()) if outside else (gradmend.watch(), Through())
    with pytest.raises(gradmend.ConflictError) as caught, first, second:
        program()
    conflict = caught.value.conflict
    assert conflict.culprits[0].line == _line("the write") and not conflict.writes[0].quiet
