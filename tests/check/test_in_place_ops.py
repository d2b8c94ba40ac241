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
# AlphaDropout ignores its flag, and its functions do nothing unless they are told to train
DROPOUTS = [
    ("y = nn.AlphaDropout(0.5, inplace=True)(x.sigmoid())", False),
    ("y = nn.FeatureAlphaDropout(0.5, inplace=True)(x.sigmoid())", False),
    ("y = nn.Dropout(0.5, inplace=True)(x.sigmoid())", True),
    ("y = F.alpha_dropout(x.sigmoid(), 0.5, inplace=True)", False),
    ("y = F.feature_alpha_dropout(x.sigmoid(), 0.5, inplace=True)", False),
    ("y = F.alpha_dropout(x.sigmoid(), 0.5, True, True)", True),
    ("y = F.dropout(x.sigmoid(), 0.5, inplace=True)", True),
    ("y = F.dropout(x.sigmoid(), 0.5, training=False, inplace=True)", False),
    ("y = F.dropout(x.sigmoid(), 0.5, False); y += 1", True),
]
RESULTS = [
    (f"y = nn.{name}(inplace=True)(x - 0.5); y += 1", refused)
    for name, refused in {
        "SELU": True, "RReLU": True, "ELU": True, "CELU": True, "LeakyReLU": True, "ReLU": True, "ReLU6": False, "SiLU": False,
        "Mish": False, "Hardswish": False, "Hardsigmoid": False, "Hardtanh": False,
    }.items()
]  # fmt: skip
RESULTS += [
    ("y = F.selu(x - 0.5, inplace=True); y += 1", True),
    ("y = torch.selu_(x - 0.5); y += 1", True),
    ("y = torch.rrelu_(x - 0.5); y += 1", True),
]
INPUTS = [
    ("c = x + 1; y = c.polygamma(1); c += 1", True),
    ("c = x + 1; y = torch.polygamma(1, c); c += 1", True),
    ("c = x + 1; y = c.add(1); c += 1", False),
]
ZEROS = [(f"y = (x * 3).{name}()", False) for name in ("round", "floor", "ceil", "trunc", "sign", "sgn")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("line", "refused"), [*POWERS, *DROPOUTS, *RESULTS, *INPUTS, *ZEROS])
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
