"""Ops with several results: what is kept of them, as torch says. Indices have no gradient, and backward reads them."""

from __future__ import annotations

import pytest

from gradmend.check.files import check_file

HEAD = (
    "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
    "x = (torch.rand(1, 1, 8, 8) + torch.eye(8)).requires_grad_()\n"
)
INDICES = {
    **{name: f"v, i = x.{name}(-1)" for name in "max min median nanmedian mode cummax cummin sort".split()},
    "max by name": "v, i = torch.max(x, dim=1)",
    "topk": "v, i = x.topk(2)",
    "kthvalue": "v, i = torch.kthvalue(x, 2)",
    "its name": "o = x.max(1)\nv, i = o.values, o.indices",
    "frexp": "v, i = torch.frexp(x)",
    "max_pool2d": "v, i = F.max_pool2d(x, 2, return_indices=True)",
    "max_pool2d_with_indices": "v, i = F.max_pool2d_with_indices(x, 2)",
    "adaptive_max_pool2d": "v, i = F.adaptive_max_pool2d(x, 2, return_indices=True)",
    "max_pool1d": "v, i = F.max_pool1d(x[0], 2, return_indices=True)",
    "MaxPool2d": "v, i = nn.MaxPool2d(2, return_indices=True)(x)",
    "AdaptiveMaxPool2d": "v, i = nn.AdaptiveMaxPool2d(2, return_indices=True)(x)",
    "unpooled": "a, i = F.max_pool2d(x.detach(), 2, return_indices=True)\nv = F.max_unpool2d(x[..., ::2, ::2] * 1, i, 2)",
}
RESULTS = {
    "qr": "i, v = torch.linalg.qr(x)",
    "the other of qr": "v, i = torch.linalg.qr(x)",
    "eigh": "v, i = torch.linalg.eigh(x)",
    "svd": "i, v, _ = torch.linalg.svd(x)",
    "aminmax": "v, i = x.aminmax(dim=1)",
}
FREE = {
    "the values of max": "i, v = x.max(1)[0], x.sum()",
    "the values of topk": "i, j = x.topk(2)\nv = x.sum() + i.sum()",
    "var_mean": "v, i = torch.var_mean(x, dim=1)",
    "no gradient": "v, i = x.detach().max(1)\nv = x.sum()",
    "a clone": "v, i = x.max(1)\ni = i.clone()",
    "an average": "v, i = F.avg_pool2d(x, 2), x.argmax()",
}


def runs(source: str) -> bool:
    try:
        exec(source, {})
    except RuntimeError as error:
        return "modified by an inplace operation" not in str(error)
    return True


def told(source: str) -> list[tuple[int, str, str]]:
    found = check_file("/nowhere/main.py", source.encode()).findings
    return [(f.place.line, f.rule, f.severity) for f in found]


@pytest.mark.parametrize("case", [*INDICES, *RESULTS])
def test_kept(case: str) -> None:
    made, rule = (INDICES[case], "GM106") if case in INDICES else (RESULTS[case], "GM101")
    source = f"{HEAD}{made}\nwith torch.no_grad():\n    i.mul_(0)\nv.sum().backward()\n"
    assert not runs(source)
    assert told(source) == [(source.count("\n") - 1, rule, "error")]


@pytest.mark.parametrize("case", FREE)
def test_not_kept(case: str) -> None:
    source = f"{HEAD}{FREE[case]}\nwith torch.no_grad():\n    i.mul_(0)\nv.sum().backward()\n"
    assert runs(source)
    assert told(source) == []
