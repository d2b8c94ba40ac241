"""What the check says of sparse tensors, asked of the installed torch: each op is refused, each optimizer too."""

from __future__ import annotations

import pytest
import torch

from gradmend.check.files import check_file
from gradmend.check.walk.sparse_ops import DENSE_ONLY, NO_DERIVATIVE, NO_FORWARD, NO_SPARSE_DECAY


def matrix() -> torch.Tensor:
    values = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]]), values, (2, 3))


@pytest.mark.parametrize("name", sorted(NO_FORWARD))
def test_no_forward(name: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        getattr(matrix(), name)()


@pytest.mark.parametrize("name", sorted(NO_DERIVATIVE))
def test_no_derivative(name: str) -> None:
    result = getattr(matrix(), name)()
    with pytest.raises((RuntimeError, NotImplementedError)):
        result.sum().backward()


@pytest.mark.parametrize("name", sorted(DENSE_ONLY))
def test_no_sparse_gradients(name: str) -> None:
    table = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = getattr(torch.optim, name)(table.parameters())
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


SUM = """\
import torch

v = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
s = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]]), v, (2, 3))
({sum}.to_dense() * torch.arange(3.0)).sum().backward()
"""


@pytest.mark.parametrize("sum", ["s.sum(dim=0)", "torch.sum(s, 0)"])
def test_a_sum_without_a_derivative(sum: str) -> None:
    source = SUM.format(sum=sum)
    assert [f.rule for f in check_file("/nowhere/h.py", source.encode()).findings] == ["GM306"]
    with pytest.raises(RuntimeError, match="expand"):
        exec(source, {})


@pytest.mark.parametrize("sum", ["torch.sparse.sum(s, dim=0)", "torch.sparse.sum(s, 0)"])
def test_a_sum_with_a_derivative(sum: str) -> None:
    source = SUM.format(sum=sum)
    assert check_file("/nowhere/h.py", source.encode()).findings == []
    names: dict[str, torch.Tensor] = {}
    exec(source, names)
    assert torch.equal(names["v"].grad, torch.tensor([2.0, 0.0, 2.0]))  # type: ignore[arg-type]


STEP = """\
import torch
from gradmend.sparse import optim

table = torch.nn.Embedding(5, 2, sparse=True)
optimizer = {optimizer}(table.parameters(), lr=0.1, weight_decay={decay})
table(torch.tensor([1, 2])).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize("name", sorted(NO_SPARSE_DECAY))
def test_no_weight_decay_of_sparse_gradients(name: str) -> None:
    source = STEP.format(optimizer=f"torch.optim.{name}", decay=0.1)
    assert [f.rule for f in check_file("/nowhere/h.py", source.encode()).findings] == ["GM308"]
    with pytest.raises(RuntimeError):
        exec(source, {})


@pytest.mark.parametrize(
    ("name", "decay"),
    [("torch.optim.SGD", 0), ("torch.optim.Adagrad", 0.0), ("optim.RowAdam", 0.1), ("optim.RowSGD", 0.1)],
)
def test_what_is_advised_for_sparse_gradients_runs(name: str, decay: float) -> None:
    source = STEP.format(optimizer=name, decay=decay)
    assert check_file("/nowhere/h.py", source.encode()).findings == []
    exec(source, {})
