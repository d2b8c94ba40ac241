"""What the check says of sparse tensors, asked of the installed torch: each op is refused, each optimizer too."""

from __future__ import annotations

import pytest
import torch

from gradmend.check.walk.sparse_ops import DENSE_ONLY, NO_DERIVATIVE, NO_FORWARD


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
