"""One op, one write, one backward: PyTorch runs each, and the check says what that said."""

from __future__ import annotations

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradmend.check.files import check_file

HEAD = """\
import operator
import torch
import torch.nn as nn
import torch.nn.functional as F
torch.manual_seed(0)
x = torch.rand({shape}, requires_grad=True)
b = torch.full((3,), 2.0)
n = 3.0
y = x * 1 + 1
"""
# The op, the shape of x; then each of the names that are written, one program each.
LINES = {
    "z = y ** b": ("3", "yzb"),
    "z = y ** 2": ("3", "yz"),
    "z = y ** n": ("3", "yz"),
    "z = 2 ** y": ("3", "yz"),
    "z = pow(2, y)": ("3", "yz"),
    "z = pow(y, b)": ("3", "yz"),
    "z = y.__pow__(b)": ("3", "yz"),
    "z = y.__rpow__(2)": ("3", "yz"),
    "z = operator.pow(y, b)": ("3", "yz"),
    "z = torch.pow(y, b)": ("3", "yz"),
    "z = y.__mul__(y)": ("3", "yz"),
    "z = y.float_power(2)": ("3", "yz"),
    "z = 1 / y": ("3", "yz"),
    "z = 2.5 / y": ("3", "yz"),
    "z = y / 2": ("3", "yz"),
    "z = b / y": ("3", "yzb"),
    "z = +y": ("3", "y"),
    "z = F.prelu(y, torch.ones(1))": ("3, 4", "yz"),
    "z = nn.PReLU()(y)": ("3, 4", "yz"),
    "z = F.logsigmoid(y)": ("3, 4", "yz"),
    "z = nn.LogSigmoid()(y)": ("3, 4", "yz"),
    "z = F.softsign(y)": ("3, 4", "yz"),
    "z = nn.Softsign()(y)": ("3, 4", "yz"),
    "z = F.local_response_norm(y, 2)": ("2, 3, 4", "yz"),
    "z = F.grid_sample(y, torch.zeros(1, 2, 2, 2))": ("1, 1, 4, 4", "yz"),
    "z = F.gumbel_softmax(y)": ("3, 4", "yz"),
    "z = F.gumbel_softmax(y, hard=True)": ("3, 4", "yz"),
    "z = torch.linalg.matrix_norm(y)": ("3, 4", "yz"),
    "z = torch.linalg.matrix_norm(y, ord='nuc')": ("3, 4", "yz"),
    "z = torch.fft.rfft(y).abs()": ("4", "yz"),
    "z, i = torch.cummax(y, 0)": ("3, 4", "yz"),
    "z, i = torch.var_mean(y)": ("3, 4", "yzi"),
    "z, i = torch.std_mean(y)": ("3, 4", "yzi"),
    "i, z = torch.linalg.slogdet(y)": ("3, 3", "yz"),
    "i, z = y.slogdet()": ("3, 3", "yz"),
    "z, i = y.mode()": ("3, 4", "yz"),
    "z, i = y.max(0)": ("3, 4", "yz"),
    "z, i = y.sort()": ("3, 4", "yz"),
    "z, i = torch.frexp(y)": ("3, 4", "yz"),
    "z, i = y.unsafe_chunk(2)": ("4", "yzi"),
    "z, i = y.unsafe_split(2)": ("4", "yzi"),
    "z, i = y.split(2)": ("4", "yz"),
    "z, i = y.chunk(2)": ("4", "yz"),
    "z, i = torch.unbind(y)": ("2, 3", "yz"),
    "z, i = y": ("2, 3", "yz"),
    "z = y.split(2)[0]": ("4", "yz"),
    "z = y.split(2)[0].clone()": ("4", "yz"),
    "z, i = nn.MaxPool2d(2, return_indices=True)(y)": ("1, 1, 4, 4", "yz"),
    "z, i = F.max_pool1d(y, 2, return_indices=True)": ("1, 1, 4", "yz"),
    "z, i = F.max_pool2d(y, 2, return_indices=True)": ("1, 1, 4, 4", "yz"),
    "z, i = F.max_pool2d_with_indices(y, 2)": ("1, 1, 4, 4", "yz"),
    "z, i = F.adaptive_max_pool2d(y, 2, return_indices=True)": ("1, 1, 4, 4", "yz"),
    "z, i = nn.AdaptiveMaxPool1d(2, return_indices=True)(y)": ("1, 1, 4", "yz"),
    "z = nn.AdaptiveMaxPool1d(2)(y)": ("1, 1, 4", "yz"),
    "z = nn.TransformerEncoderLayer(4, 2)(y)": ("3, 2, 4", "yz"),
    "z, i = nn.MultiheadAttention(4, 2)(y, y, y)": ("3, 2, 4", "yz"),
}


@pytest.mark.parametrize(("line", "shape", "name"), [(k, s, n) for k, (s, ns) in LINES.items() for n in ns])
@pytest.mark.filterwarnings("ignore")
def test_what_pytorch_says(line: str, shape: str, name: str) -> None:
    source = HEAD.format(shape=shape) + f"{line}\n{name} += 1\nz.sum().backward()\n"
    said = ""
    try:
        exec(compile(source, "main.py", "exec"), {})
    except RuntimeError as error:
        said = str(error)
    broken = "modified by an inplace operation" in said or "is a view and" in said
    assert broken or not said
    found = [
        (f.place.line, f.rule, f.severity) for f in check_file("/nowhere/main.py", source.encode()).findings
    ]
    assert [line for line, _, _ in found] == [11] * broken, found


def test_the_output_of_an_lstm() -> None:
    """Kept by the kernels that most machines have: a warning."""
    source = HEAD.format(shape="3, 2, 4") + "z, (h, c) = nn.LSTM(4, 3)(y)\nz += 1\nz.sum().backward()\n"
    found = check_file("/nowhere/main.py", source.encode()).findings
    assert [(f.place.line, f.severity) for f in found] == [(11, "warning")]


ATTENTION = """\
import torch
import torch.nn.functional as F
torch.manual_seed(0)
x = torch.randn({shape}, requires_grad=True)
q, k, v = x * 1, x * 2, x * 3
{line}
{name}[0] = 0
(y * torch.arange(3.0)).sum().backward()
"""
ATTEND = "y = F.scaled_dot_product_attention({})"


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
@pytest.mark.parametrize("name", "qkvy")
@pytest.mark.parametrize(
    "given",
    [
        "q, k, v",
        "q, key=k, value=v",
        "q.detach(), k, v",
        "q.detach(), k.detach(), v",
        "q, k, v, is_causal=True",
    ],
)
def test_what_attention_keeps_depends_on_its_kernel(given: str, name: str, backend: SDPBackend) -> None:
    """An error is what every kernel refuses; of what the fused ones alone keep, a warning."""
    source = ATTENTION.format(shape="2, 2, 4, 3", line=ATTEND.format(given), name=name)
    said = ""
    try:
        with sdpa_kernel(backend):
            exec(compile(source, "main.py", "exec"), {})
    except RuntimeError as error:
        said = str(error)
    refused = "modified by an inplace operation" in said
    assert refused or not said
    found = [f.severity for f in check_file("/nowhere/main.py", source.encode()).findings]
    if backend == SDPBackend.MATH:
        assert found == ["error" if refused else "warning"]
    else:
        assert refused and len(found) == 1


def test_a_cache_of_keys_that_grows() -> None:
    """Three dimensions: 2.13 takes the kernel that keeps a copy, and is right; 2.15 refuses it."""
    source = """\
import torch
import torch.nn.functional as F
k = torch.nn.Linear(8, 8)
x = torch.randn(2, 5, 8)
K = torch.zeros(2, 5, 8)
loss = 0
for t in range(5):
    K[:, t] = k(x[:, t])
    y = F.scaled_dot_product_attention(x[:, t:t+1], K[:, :t+1], x[:, :t+1])
    loss = loss + y.square().mean()
loss.backward()
"""
    found = check_file("/nowhere/main.py", source.encode()).findings
    assert [(f.rule, f.severity) for f in found] == [("GM103", "warning")]
