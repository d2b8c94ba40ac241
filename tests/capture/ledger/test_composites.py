"""Sparse tensors that ops keep: their indices and values are memory that can be overwritten, seen by PyTorch or not."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

import gradmend
from gradmend.capture.taps.hub import LEDGER

ROWS, COLUMNS = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]

held_mul_ = torch.Tensor.mul_  # a name taken before anything is armed


def make(layout: torch.layout, values: torch.Tensor, size: int = 4) -> torch.Tensor:
    """A matrix over just this memory."""
    shape = (size, size)
    if layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(torch.stack([ROWS, COLUMNS]), values, shape, is_coalesced=True)
    if layout in (torch.sparse_bsr, torch.sparse_bsc):
        values, shape = values.view(-1, 1, 1), (size, size)
    ends = torch.tensor([0, 1, 2, 3, 3])
    inner = COLUMNS if layout in (torch.sparse_csr, torch.sparse_bsr) else torch.tensor([2, 0, 1])
    return torch.sparse_compressed_tensor(ends, inner.clone(), values, shape, layout=layout)


def used(adj: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.sparse.mm(adj, w) if adj.layout is torch.sparse_coo else adj @ w).square().sum()


def right(layout: torch.layout) -> torch.Tensor:
    w = torch.arange(8.0).view(4, 2).requires_grad_()
    dense = make(layout, torch.tensor([1.0, 2.0, 3.0])).to_dense()
    (dense @ w).square().sum().backward()
    return w.grad


Write = Callable[[torch.Tensor, torch.Tensor], object]
WRITES: dict[str, Write] = {
    "its values": lambda adj, values: adj.values().mul_(3),
    "its values through .data": lambda adj, values: adj.values().data.mul_(3),
    "what it was made of": lambda adj, values: values.mul_(3),
    "a part of that": lambda adj, values: values[1:].zero_(),
    "its indices": lambda adj, values: (
        adj.indices() if adj.layout is torch.sparse_coo else _inner(adj)
    ).zero_(),
    "the matrix": lambda adj, values: adj.mul_(3),
}


def _inner(adj: torch.Tensor) -> torch.Tensor:
    by_rows = adj.layout in (torch.sparse_csr, torch.sparse_bsr)
    return adj.col_indices() if by_rows else adj.row_indices()


def program(layout: torch.layout, write: Write) -> torch.Tensor:
    w = torch.arange(8.0).view(4, 2).requires_grad_()
    values = torch.tensor([1.0, 2.0, 3.0])
    adj = make(layout, values)
    loss = used(adj, w)
    write(adj, values)
    loss.backward()
    assert w.grad is not None
    return w.grad


def runs(layout: torch.layout, write: Write) -> bool:
    """Whether torch has these ops for this layout at all."""
    w = torch.arange(8.0).view(4, 2).requires_grad_()
    values = torch.tensor([1.0, 2.0, 3.0])
    adj = make(layout, values)
    try:
        used(adj, w).backward()
        write(adj, values)
    except RuntimeError:
        return False
    return True


CASES = [
    pytest.param(layout, write, id=f"{str(layout).removeprefix('torch.')}-{name}")
    for layout in LAYOUTS
    for name, write in WRITES.items()
    if runs(layout, write) and (layout, name) != (torch.sparse_coo, "the matrix")
]


def test_most_layouts_are_here() -> None:
    assert len({layout for case in CASES for layout in case.values[:1]}) >= 3


@pytest.mark.parametrize(("layout", "write"), CASES)
def test_a_write_to_its_memory_is_found_and_healed(layout: torch.layout, write: Write) -> None:
    with gradmend.watch() as session, pytest.raises(gradmend.ConflictError) as caught:
        program(layout, write)
    assert caught.value.conflict.culprits[0].file == __file__ and caught.value.conflict.rule != "GM110"
    assert len(session.conflicts) == 1
    with gradmend.heal():
        torch.testing.assert_close(program(layout, write), right(layout))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_nothing_is_said_of_a_matrix_that_stands(layout: torch.layout) -> None:
    with gradmend.watch() as session:
        got = program(layout, lambda adj, values: torch.zeros(3).mul_(2))
    torch.testing.assert_close(got, right(layout))
    assert session.outcome == "clean" and not session.conflicts


@pytest.mark.parametrize(
    "write",
    [
        lambda adj, values: adj.mul_(3),
        lambda adj, values: adj.add_(torch.sparse_coo_tensor([[3], [3]], [1.0], (4, 4))),
    ],
)
def test_an_op_that_gives_it_other_memory_is_refused_but_right(write: Write) -> None:
    with pytest.raises(RuntimeError, match="inplace"):
        program(torch.sparse_coo, write)
    with gradmend.watch() as session:
        got = program(torch.sparse_coo, write)
    torch.testing.assert_close(got, right(torch.sparse_coo))
    assert {c.kind for c in session.conflicts} == {"refused-but-right"}


def test_a_step_that_nobody_saw_stops() -> None:
    unseen = held_mul_

    for context in (gradmend.watch(), gradmend.heal()):
        with context, pytest.raises(gradmend.ConflictError) as caught:
            program(torch.sparse_coo, lambda adj, values: unseen(adj.values(), 3))
        assert caught.value.conflict.rule == "GM110"


def test_the_values_are_trained_through_too() -> None:
    """Each op keeps the other side: here the sparse one needs the gradient."""
    with gradmend.heal():
        values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        w = torch.arange(8.0).view(4, 2)
        loss = used(torch.sparse_coo_tensor(torch.stack([ROWS, COLUMNS]), values, (4, 4)), w)
        w.zero_()
        loss.backward()
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    w = torch.arange(8.0).view(4, 2)
    torch.zeros(4, 4).index_put((ROWS, COLUMNS), x).matmul(w).square().sum().backward()
    torch.testing.assert_close(values.grad, x.grad)


def test_written_twice_and_asked_twice() -> None:
    w = torch.arange(8.0).view(4, 2).requires_grad_()
    with gradmend.heal():
        adj = make(torch.sparse_coo, torch.tensor([1.0, 2.0, 3.0]))
        first = used(adj, w)
        adj.values().mul_(3)
        second = used(adj, w)
        adj.indices().zero_()
        adj.values().zero_()
        second.backward(retain_graph=True)
        second.backward()
        first.backward()
    torch.testing.assert_close(w.grad, (1 + 2 * 9) * right(torch.sparse_coo))


def test_nothing_is_kept_for_ever() -> None:
    with gradmend.heal():
        adj, w = make(torch.sparse_coo, torch.tensor([1.0, 2.0, 3.0])), torch.ones(4, 2, requires_grad=True)
        for _ in range(50):
            loss = used(adj, w)
            adj.values().add_(1)
            loss.backward()
            del loss
        gc.collect()
        LEDGER.settle()
        LEDGER.bury()  # else the next Write does
        assert len(LEDGER.timelines) == 0 and LEDGER.kept_bytes() == 0


def test_an_empty_matrix() -> None:
    w = torch.ones(4, 2, requires_grad=True)
    with gradmend.watch():
        used(torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.long), [], (4, 4)), w).backward()
    assert w.grad is not None and not w.grad.any()
