"""patch() and writes that no version counter sees: what it keeps of a tensor must never be older than the tensor.

The referee is the same program on plain torch, or dense algebra where plain torch refuses the program.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gradmend.sparse.errors import SparseError
from gradmend.sparse.patch import known, patch

SIZE = (3, 3)
Program = Callable[[str, "Callable[[Tensor], Tensor]"], Any]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        yield


def build(layout: str, values: Tensor, places: Tensor | None = None) -> Tensor:
    """Two entries. COO: unsorted unless places are given."""
    if layout == "csr":
        return torch.sparse_csr_tensor(
            torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2]) if places is None else places, values, SIZE
        )
    index = torch.tensor([[0, 1], [1, 2]]) if layout == "sorted" else torch.tensor([[2, 0], [0, 1]])
    return torch.sparse_coo_tensor(index if places is None else places, values, SIZE)


def two(start: float = 1.0) -> Tensor:
    return torch.tensor([start, 2 * start], requires_grad=True)


def product(A: Tensor) -> Tensor:
    return A @ torch.eye(3)


def places(layout: str) -> tuple[Any, Any]:
    """Indices in numpy's memory, and what is written there later."""
    if layout == "csr":
        return np.array([1, 2]), [0, 0]
    return np.array([[0, 1], [1, 2]]), [[2, 0], [0, 0]]


def values_written(layout: str, use: Callable[[Tensor], Tensor]) -> Any:
    w = two()
    A = build(layout, w)
    alive = use(A).sum()
    with torch.no_grad():
        w.mul_(10)
    return use(A).tolist(), alive.item()


def leaf_written(layout: str, use: Callable[[Tensor], Tensor]) -> Any:
    A = build(layout, two().detach()).requires_grad_()
    alive = use(A).sum()
    with torch.no_grad():
        (A.values() if layout == "csr" else A._values()).mul_(10)
    return use(A).tolist(), alive.item()


def leaf_scaled(layout: str, use: Callable[[Tensor], Tensor]) -> Any:
    A = build(layout, two().detach()).requires_grad_()
    alive = use(A).sum()
    with torch.no_grad():
        A.mul_(10)
    return use(A).tolist(), alive.item()


def other_matrix(layout: str) -> Tensor:
    return build(layout, torch.tensor([5.0, 7.0]), torch.tensor(places(layout)[1]))


def leaf_copied(layout: str, use: Callable[[Tensor], Tensor]) -> Any:
    A = build(layout, two().detach()).requires_grad_()
    alive = use(A).sum()
    with torch.no_grad():
        A.copy_(other_matrix(layout))
    return use(A).tolist(), alive.item()


def leaf_replaced(layout: str, use: Callable[[Tensor], Tensor]) -> Any:
    A = build(layout, two().detach()).requires_grad_()
    alive = use(A).sum()
    A.data = other_matrix(layout)
    return use(A).tolist(), alive.item()


def values_replaced(layout: str, use: Callable[[Tensor], Tensor]) -> Any:
    """`w.data =`: CSR follows it, COO does not (2.13)."""
    w = two()
    A = build(layout, w)
    alive = use(A).sum()
    w.data = torch.tensor([5.0, 6.0])
    return use(A).tolist(), alive.item()


def numpy_indices(layout: str, use: Callable[[Tensor], Tensor]) -> Any:
    array, later = places(layout)
    index, w = torch.from_numpy(array), two()
    alive = use(build(layout, w, index)).sum()
    array[:] = later
    out = use(build(layout, w, index))
    return (
        out.tolist(),
        torch.autograd.grad((out * torch.arange(9.0).view(3, 3)).sum(), w)[0].tolist(),
        alive.item(),
    )


def data_indices(layout: str, use: Callable[[Tensor], Tensor]) -> Any:
    array, later = places(layout)
    index, w = torch.tensor(array), two()
    alive = use(build(layout, w, index)).sum()
    index.data.copy_(torch.tensor(later))
    return use(build(layout, w, index)).tolist(), alive.item()


def inference_indices(layout: str, use: Callable[[Tensor], Tensor]) -> Any:
    with torch.inference_mode():
        index = torch.tensor(places(layout)[0])
    w = two()
    use(build(layout, w, index)).pow(2).sum().backward()
    use(build(layout, w, index)).pow(2).sum().backward()
    assert w.grad is not None
    return w.grad.tolist()


PROGRAMS: list[Program] = [
    values_written,
    leaf_written,
    leaf_scaled,
    leaf_copied,
    leaf_replaced,
    values_replaced,
    numpy_indices,
    data_indices,
    inference_indices,
]


@pytest.mark.parametrize("layout", ["coo", "sorted", "csr"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_plain_torch_computes(program: Program, layout: str) -> None:
    plain = program(layout, product)
    with patch():
        assert program(layout, product) == plain


def by_values(A: Tensor, values: Tensor) -> None:
    (A.values() if A.layout == torch.sparse_csr else A._values()).mul_(3)


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "A": lambda A, values: A.mul_(3),
    "A's values": by_values,
    "the values given": lambda A, values: values.detach().mul_(3),
    "numpy": lambda A, values: np.multiply(values.detach().numpy(), 3, out=values.detach().numpy()),
}


@pytest.mark.parametrize("when", ["built before", "built while"])
@pytest.mark.parametrize("kind", ["leaf", "graph", "constant"])
@pytest.mark.parametrize("layout", ["coo", "sorted", "csr"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_before_backward_does_not_reach_it(write: str, layout: str, kind: str, when: str) -> None:
    w = two()
    X = torch.randn(3, 2, requires_grad=True)

    def made() -> tuple[Tensor, Tensor]:
        values = w * 1 if kind == "graph" else w.detach().clone()
        return build(layout, values).requires_grad_(kind != "constant"), values

    want = made()[0].detach().to_dense().sum(0)[:, None].expand(3, 2)
    early = made()
    with patch(masked=kind == "leaf"):  # else a leaf is torch's own matter
        A, values = early if when == "built before" else made()
        out = (A @ X).sum()
        with torch.no_grad():
            WRITES[write](A, values)
        (got,) = torch.autograd.grad(out, X)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("layout", ["coo", "sorted", "csr"])
def test_a_write_within_the_graph(layout: str) -> None:
    """Plain torch refuses its backward: products before the write and after it, against dense algebra."""

    def loss(A: Tensor, B: Tensor) -> Tensor:
        return product(A).sum() + product(B).pow(2).sum()

    w = two()
    D = build(layout, w).to_dense()
    (want,) = torch.autograd.grad(loss(D, D * 3), w)
    with patch():
        A = build(layout, w * 1)
        before = product(A)
        A.mul_(3)
        (before.sum() + product(A).pow(2).sum()).backward()
    torch.testing.assert_close(w.grad, want)


@pytest.mark.parametrize("layout", ["coo", "sorted", "csr"])
def test_a_write_to_a_result_does_not_reach_its_own_backward(layout: str) -> None:
    w = two()
    with patch():
        B = build(layout, w).tanh()
        with torch.no_grad():
            by_values(B, w)
        B.sum().backward()
    torch.testing.assert_close(w.grad, 1 - w.detach().tanh() ** 2)


@pytest.mark.parametrize("layout", ["sorted", "csr"])
@pytest.mark.parametrize("later", [product, torch.Tensor.to_dense])
def test_a_tensor_whose_indices_were_changed_is_used_again(layout: str, later: Callable[..., Tensor]) -> None:
    """Its values belong to the places it was built with, and torch's own operations use the new ones."""
    array, other = places(layout)
    with patch():
        A = build(layout, two(), torch.from_numpy(array))
        product(A)
        array[:] = other
        with pytest.raises(SparseError, match="indices of a sparse tensor were changed after it was built"):
            later(A).pow(2).sum().backward()


@pytest.mark.parametrize("layout", ["sorted", "csr"])
def test_indices_changed_before_backward_do_not_reach_it(layout: str) -> None:
    array, other = places(layout)
    w, G = two(), torch.arange(9.0).view(3, 3)
    with patch():
        out = (product(build(layout, w, torch.from_numpy(array))) * G).sum()
        array[:] = other
        out.backward()
    assert w.grad is not None and w.grad.tolist() == [1.0, 5.0]


@pytest.mark.parametrize("layout", ["coo", "sorted", "csr"])
def test_uses_of_one_tensor_share_their_node(layout: str) -> None:
    """So that gradients add up as plain vectors: torch would add sparse tensors, place by place."""
    with patch():
        A = build(layout, two())
        first, second = product(A), product(A)
        found = known.know(A).entries(A)
        assert found is not None and known.know(A).entries(A) is found
        del first, second, found
        assert known.know(A).entries(A) is None


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("at", [0, 3000, -1])
def test_one_number_among_thousands_of_indices_is_seen(layout: str, at: int) -> None:
    """Long indices are compared by another road than short ones."""
    n = 5000
    columns = np.arange(n)
    values = torch.ones(n, requires_grad=True)
    with patch():
        if layout == "csr":
            memory = columns
            A = torch.sparse_csr_tensor(torch.arange(n + 1), torch.from_numpy(columns), values, (n, n))
        else:
            memory = np.stack([columns, columns])
            A = torch.sparse_coo_tensor(torch.from_numpy(memory), values, (n, n))
        X = torch.randn(n, 2)
        torch.testing.assert_close(A @ X, X)
        memory[..., at] = 7
        with pytest.raises(SparseError, match="indices of a sparse tensor were changed"):
            A @ X
        memory[..., at] = range(n)[at]
        torch.testing.assert_close(A @ X, X)
