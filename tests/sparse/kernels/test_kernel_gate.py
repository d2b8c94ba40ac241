"""No kernel reads what the gate has not seen: wrong shapes, indices and memory are errors, on every road."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradmend.sparse import SparseError
from gradmend.sparse.kernels import checks, matmul, rows, segment
from gradmend.sparse.optim import RowAdam

CROW, COL = torch.tensor([0, 2, 2, 3]), torch.tensor([0, 3, 1])
CROW_T, ROW_T, PERM = torch.tensor([0, 1, 2, 2, 3]), torch.tensor([0, 2, 0]), torch.tensor([0, 2, 1])
V, X, G = torch.ones(3), torch.ones(4, 8), torch.ones(3, 8)
FAR = torch.tensor([0, 10**7, 1])

WRONG: dict[str, Callable[[], Any]] = {
    "too few values": lambda: matmul.spmm(CROW, COL, V[:2], X),
    "too few rows of X": lambda: matmul.spmm(CROW, COL, V, X[:3]),
    "too few rows of X, known size": lambda: matmul.spmm(CROW, COL, V, X[:3], None, (3, 4)),
    "columns outside": lambda: matmul.spmm(CROW, FAR, V, X),
    "negative columns": lambda: matmul.spmm(CROW, COL - 1, V, X),
    "pointers that fall": lambda: matmul.spmm(torch.tensor([0, 3, 1, 3]), COL, V, X),
    "pointers too far": lambda: matmul.spmm(torch.tensor([0, 2, 2, 9]), COL, V, X),
    "permutation outside": lambda: matmul.spmm(CROW_T, ROW_T, V, G, FAR),
    "X of three dimensions": lambda: matmul.spmm(CROW, COL, V, X[None]),
    "other devices": lambda: matmul.spmm(CROW, COL, V, X.to("meta")),
    "sddmm rows": lambda: matmul.sddmm(CROW, COL, G[:2], X),
    "sddmm columns": lambda: matmul.sddmm(CROW, COL, G, X[:3]),
    "sddmm widths": lambda: matmul.sddmm(CROW, COL, G, X[:, :5]),
    "backward's gradient": lambda: matmul.spmm_backward(CROW, COL, CROW_T, ROW_T, PERM, V, X, G[:2]),
    "segments too long": lambda: segment.segment_sum(CROW, torch.ones(5)),
    "segments known": lambda: segment.segment_max(CROW, torch.ones(5), known=True),
    "groups outside": lambda: segment.scatter_sum(FAR, V, 3),
    "gather outside": lambda: segment.gather(FAR, V),
    "softmax's gradient": lambda: segment.segment_softmax_backward(CROW, V, torch.ones(2)),
    "compiled op": lambda: torch.ops.gradmend.spmm(CROW, FAR, CROW_T, ROW_T, PERM, V, X, False),
}


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (matmul, segment, rows):
        monkeypatch.setattr(module, "SMALL", 0 if request.param == "compiled" else float("inf"))


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_wrong_operands_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(SparseError):
        call()


def test_right_operands_pass() -> None:
    D = torch.zeros(3, 4).index_put((torch.tensor([0, 0, 2]), COL), V)
    torch.testing.assert_close(matmul.spmm(CROW, COL, V, X), D @ X)
    torch.testing.assert_close(matmul.spmm(CROW_T, ROW_T, V, G, PERM), D.T @ G)


def test_a_gradient_that_names_rows_outside_is_refused() -> None:
    p = torch.nn.Parameter(torch.ones(4, 8))
    p.grad = torch.sparse_coo_tensor(torch.tensor([[0, 3]]), torch.ones(2, 8), (4, 8))
    p.grad._indices().add_(10**6)
    with pytest.raises(SparseError, match="rows of the gradient"):
        RowAdam([p]).step()


def test_addresses_come_from_the_gate_alone() -> None:
    home = Path(checks.__file__).parent
    found = {
        f.name
        for f in home.glob("*.py")
        if re.search(r"\bdata_ptr\(\)", re.sub(r'""".*?"""', "", f.read_text(), flags=re.S))
    }
    assert found == {"checks.py", "memory.py"}  # memory.py asks for huge pages in what it has just made
