"""In-place forms one by one: the installed torch runs each program, and what it refuses is what is told."""

from __future__ import annotations

import pytest

from gradmend.check.files import check_file

PROGRAM = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
torch.manual_seed(0)
x = torch.rand(2, 3, requires_grad=True)
e = torch.full((2, 3), 2.0)
k = 3
{line}
y.sum().backward()
"""
# by a number pow_ keeps a copy of its input, by a tensor its result
POWERS = [
    ("y = (x - 1).pow_(2).mul_(0.5)", False),
    ("y = (x + 1).pow_(k).mul_(0.5)", False),
    ("y = x + 1; y **= 2; y *= 3", False),
    ("y = x + 1; y **= k; y += 1", False),
    ("y = (x + 1).pow_(e).mul_(0.5)", True),
    ("y = x.exp(); y.pow_(2)", True),
    ("h = x + 1; y = h.pow(2); h.pow_(2)", True),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("line", "refused"), POWERS)
def test_it_is_told_where_pytorch_refuses_it(line: str, refused: bool) -> None:
    source = PROGRAM.format(line=line)
    if refused:
        with pytest.raises(RuntimeError, match="inplace"):
            exec(source, {})
    else:
        exec(source, {})
    found = check_file("/nowhere/main.py", source.encode()).findings
    assert [(f.place.line, f.severity) for f in found] == [(8, "error")] * refused


def test_a_power_in_place_is_still_used_up_by_backward() -> None:
    source = PROGRAM.format(line="y = (x + 1).pow_(2)") + "y.sum().backward()\n"
    with pytest.raises(RuntimeError, match="second time"):
        exec(source, {})
    assert [f.rule for f in check_file("/nowhere/main.py", source.encode()).findings] == ["GM131"]
