"""Pieces of one call: PyTorch refuses a write to a view that split() made, and lets one through to a slice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch  # noqa: F401

from gradmend.check.files import check_file

HEAD = "import torch\nx = torch.ones(4, 4, 4, dtype=torch.float64, requires_grad=True)\nh = x * 2\n"
TAIL = "h.sum().backward()\n"
PIECES = {
    "tensor_split": "a, b = h.tensor_split(2)\na.mul_(2)\n",
    "torch.tensor_split": "a, b = torch.tensor_split(h, 2)\na.mul_(2)\n",
    "hsplit": "a, b = h.hsplit(2)\na += 1\n",
    "vsplit": "for part in h.vsplit(2):\n    part.mul_(2)\n",
    "dsplit": "h.dsplit(2)[0].mul_(2)\n",
    "split": "a, b = h.split(2)\na.mul_(2)\n",
    "chunk": "a, b = h.chunk(2)\na.mul_(2)\n",
    "unbind": "h.unbind()[0].mul_(2)\n",
    "float_power_ by a number": "h.float_power_(2)\nh.mul_(2)\n",
    "float_power_ by a tensor": "h.float_power_(x)\nh.mul_(2)\n",
    "pow_ by a number": "h.pow_(2)\nh.mul_(2)\n",
    "pow_ by a tensor": "h.pow_(x)\nh.mul_(2)\n",
}


@pytest.mark.parametrize("name", PIECES)
def test_an_error_is_reported_where_pytorch_raises(name: str, tmp_path: Path) -> None:
    source = HEAD + PIECES[name] + TAIL
    try:
        exec(source, {})
        refused = False
    except RuntimeError:
        refused = True
    file = tmp_path / "program.py"
    file.write_text(source)
    assert bool(check_file(str(file)).findings) == refused
