"""Which outputs of a node get a gradient, told from inside its backward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from gradmend.capture.graph.incoming import reached

NODE = "LinalgEighBackward0"


class Listening:
    """Notes what `reached` says each time eigh's backward asks for what it saved."""

    def __init__(self, matrix: torch.Tensor) -> None:
        self.said: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), self._unpack):
            self.values, self.vectors = torch.linalg.eigh(matrix + matrix.mT)

    def _unpack(self, t: torch.Tensor) -> torch.Tensor:
        node = torch._C._current_autograd_node()
        if node is not None and node.name() == NODE:
            self.said.append(reached(node))
        return t


@pytest.fixture
def eigh() -> Listening:
    torch.manual_seed(0)
    return Listening(torch.rand(3, 3, dtype=torch.float64, requires_grad=True))


def test_one_output_or_both(eigh: Listening) -> None:
    eigh.values.exp().sum().backward(retain_graph=True)
    assert set(eigh.said) == {frozenset({0})}
    eigh.said.clear()
    (eigh.values.sum() + eigh.vectors.abs().sum()).backward(retain_graph=True)
    assert set(eigh.said) == {frozenset({0, 1})}


def test_outputs_that_are_roots_themselves(eigh: Listening) -> None:
    torch.autograd.backward([eigh.vectors], [torch.ones(3, 3, dtype=torch.float64)], retain_graph=True)
    assert set(eigh.said) == {frozenset({1})}
    eigh.said.clear()
    edge = torch.autograd.graph.get_gradient_edge(eigh.values)
    torch.autograd.backward([edge], [torch.ones(3, dtype=torch.float64)])
    assert set(eigh.said) == {frozenset({0})}


def test_a_backward_inside_another_answers_for_itself(eigh: Listening) -> None:
    """A hook of an outer backward runs one that has nothing to do with it."""
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    y = x * 2
    loss = eigh.vectors.abs().sum()
    y.register_hook(lambda g: loss.backward())
    (y.sum() + 1).backward()
    assert set(eigh.said) == {frozenset({1})}


def test_reentrant_checkpoint_recomputes_and_answers_for_its_own_graph() -> None:
    said: list[Any] = []

    def block(m: torch.Tensor) -> torch.Tensor:
        inner = Listening(m)
        said.append(inner)
        return inner.values

    m = torch.rand(3, 3, dtype=torch.float64, requires_grad=True)
    checkpoint(block, m, use_reentrant=True).sum().backward()
    assert set(said[-1].said) == {frozenset({0})}


@pytest.mark.parametrize("where", ["outside of any backward", "another thread"])
def test_where_nobody_can_tell(eigh: Listening, where: str) -> None:
    node = eigh.values.grad_fn
    if where == "another thread":
        assert _elsewhere(lambda: reached(node)) is None
    else:
        assert reached(node) is None


def test_a_node_that_is_not_on_the_way(eigh: Listening) -> None:
    """C++ may run another graph inside this one: then these roots say nothing about it."""
    said: list[Any] = []
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: said.append(reached(eigh.values.grad_fn)))
    y.sum().backward()
    assert said == [None]


def test_no_hook_can_bring_a_gradient_that_did_not_arrive() -> None:
    """What the conclusion rests on: PyTorch refuses it, of a node's hook and of a tensor's."""

    def bring(g: torch.Tensor | None) -> torch.Tensor:
        return torch.ones(3, 3) if g is None else g

    for by in ("node", "tensor"):
        values, vectors = torch.linalg.eigh(torch.eye(3, requires_grad=True) * 2)
        if by == "node":
            values.grad_fn.register_prehook(lambda grads: tuple(map(bring, grads)))
        else:
            vectors.register_hook(bring)
        with pytest.raises(RuntimeError, match="can't replace a None gradient"):
            values.sum().backward()


def _elsewhere(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]
