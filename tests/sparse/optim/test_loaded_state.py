"""State that is loaded: it goes on as it was, or is refused with what differs, and nothing has changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import rows
from gradmend.sparse.optim import RowAdagrad, RowAdam, RowAdamW, RowSGD

KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": RowAdam,
    "adamw": lambda p: RowAdamW(p, lr=0.1, weight_decay=0.5),
    "adagrad": RowAdagrad,
    "adagrad by row": lambda p: RowAdagrad(p, by_row=True),
    "momentum": lambda p: RowSGD(p, lr=0.1, momentum=0.9),
}


def named(index: list[int], n: int = 5, d: int = 2, seed: int = 0) -> Tensor:
    values = torch.randn(len(index), d, generator=torch.Generator().manual_seed(seed))
    return torch.sparse_coo_tensor(torch.tensor([index]), values, (n, d), check_invariants=True)


def stepped(kind: Callable[..., Any], *grads: Tensor) -> tuple[nn.Parameter, Any]:
    param = nn.Parameter(torch.ones(grads[0].shape))
    optimizer = kind([param])
    for grad in grads:
        param.grad = grad
        optimizer.step()
    return param, optimizer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("small", [0, float("inf")], ids=["compiled", "plain"])
def test_state_of_sparse_and_dense_gradients_goes_on(
    kind: str, small: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "SMALL", small)
    sparse, dense = named([1, 3]), torch.ones(5, 2)
    for grads in ((sparse, dense), (sparse, dense, named([0], seed=2)), (dense, sparse)):
        param, optimizer = stepped(KINDS[kind], *grads)
        twin = nn.Parameter(param.detach().clone())
        loaded = KINDS[kind]([twin])
        loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for p, one in ((param, optimizer), (twin, loaded)):
            p.grad = named([0, 4, 3], seed=1)
            one.step()
            if isinstance(one, RowAdam):
                one.settle()
        assert torch.equal(param, twin)


def changed(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    made = copy.deepcopy(state)
    made["state"][0].update(more)
    return made


def without(state: dict[str, Any], name: str) -> dict[str, Any]:
    made = copy.deepcopy(state)
    del made["state"][0][name]
    return made


def refused(kind: Callable[..., Any], param: nn.Parameter, state: Any, words: str) -> None:
    """The error, and that the optimizer is what it was: it steps as one that has never seen this state."""
    optimizer, fresh = kind([param]), kind([twin := nn.Parameter(param.detach().clone())])
    with pytest.raises(SparseError, match=words) as error:
        optimizer.load_state_dict(state)
    assert "Nothing was loaded" in str(error.value)
    assert not optimizer.state and len(optimizer._optimizer_load_state_dict_pre_hooks) == 0
    for p, one in ((param, optimizer), (twin, fresh)):
        p.grad = torch.ones_like(p)
        one.step()
    assert torch.equal(param, twin)


def test_state_that_does_not_fit_is_refused_with_what_differs() -> None:
    _, by_rows = stepped(RowAdamW, named([1, 3]))
    _, whole = stepped(RowAdam, torch.ones(5, 2))
    rows_state, whole_state = by_rows.state_dict(), whole.state_dict()
    for n in (4, 7):
        wrong = rf"parameter 0 of group 0, of the shape \({n}, 2\), its exp_avg has the shape \(5, 2\)"
        refused(RowAdam, nn.Parameter(torch.ones(n, 2)), whole_state, wrong)
    wide = r"its exp_avg has the shape \(2, 2\), and \(2, 3\) is needed"
    refused(RowAdamW, nn.Parameter(torch.ones(5, 3)), rows_state, wide)
    refused(
        RowAdamW, nn.Parameter(torch.ones(7, 2)), rows_state, r"its last has the shape \(5,\), and \(7,\)"
    )
    cases = {
        r"its last has the shape \(2,\), and \(5,\) is needed": changed(rows_state, last=torch.zeros(2)),
        r"its exp_avg has the shape \(1,\), and \(2, 2\)": changed(rows_state, exp_avg=torch.zeros(1)),
        "its exp_avg is str": changed(rows_state, exp_avg="x"),
        "its decayed is None": changed(rows_state, decayed=None),
        "it holds some rows twice": changed(rows_state, rows=torch.tensor([1, 1])),
        "its rows go from -1 to 3": changed(rows_state, rows=torch.tensor([-1, 3])),
        r"its rows are torch\.float32": changed(rows_state, rows=torch.tensor([1.0, 3.0])),
        "its step is 'one'": changed(rows_state, step="one"),
        "it holds max_exp_avg_sq, which": changed(rows_state, max_exp_avg_sq=torch.zeros(5, 2)),
        "it holds no exp_avg_sq": without(rows_state, "exp_avg_sq"),
        "it holds no decayed": without(rows_state, "decayed"),
        "it holds no param_groups and state": {"state": {}},
    }
    for words, state in cases.items():
        refused(RowAdamW, nn.Parameter(torch.ones(5, 2)), state, words)


def test_state_of_another_optimizer_is_refused() -> None:
    param = nn.Parameter(torch.ones(5, 2))
    _, theirs = stepped(torch.optim.Adam, torch.ones(5, 2))
    refused(RowAdam, param, theirs.state_dict(), "group 0 has no decay, error_if_nonfinite: it is of another")
    _, adam = stepped(RowAdam, torch.ones(5, 2))
    refused(RowSGD, param, adam.state_dict(), "group 0 has no dampening, momentum, nesterov")
    _, full = stepped(RowAdagrad, named([1]))
    refused(KINDS["adagrad by row"], param, full.state_dict(), r"its sum has the shape \(1, 2\), and \(1,\)")
    with pytest.raises(ValueError, match="parameter group that doesn't match the size"):  # torch's own word
        RowAdam([param, nn.Parameter(torch.ones(2))]).load_state_dict(adam.state_dict())


def test_a_hook_may_adapt_a_state_that_does_not_fit() -> None:
    _, saved = stepped(RowAdam, torch.ones(5, 2))
    longer = RowAdam([param := nn.Parameter(torch.ones(7, 2))])

    def grow(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        one = {
            k: nn.functional.pad(x, (0, 0, 0, 2)) if isinstance(x, Tensor) else x
            for k, x in state["state"][0].items()
        }
        return {**state, "state": {0: one}}

    longer.register_load_state_dict_pre_hook(grow)
    longer.load_state_dict(saved.state_dict())
    assert longer.state[param]["exp_avg"].shape == (7, 2) and longer.state[param]["step"] == 1


def test_momentum_that_was_switched_off_is_saved_by_rows() -> None:
    param, optimizer = stepped(KINDS["momentum"], named([1, 3]))
    optimizer.param_groups[0]["momentum"] = 0.0
    state = optimizer.state_dict()
    assert state["state"][0]["momentum_buffer"].shape == (2, 2)
    other = KINDS["momentum"]([nn.Parameter(param.detach().clone())])
    other.load_state_dict(state)
    assert other.param_groups[0]["momentum"] == 0.0


@pytest.mark.parametrize(
    ("kind", "grad", "words"),
    [
        (RowAdam, torch.ones(5, 2), r"its exp_avg has the shape \(5, 2\), and \(6, 2\)"),
        (RowAdam, named([1]), "it is of 5 rows"),
        (KINDS["adagrad by row"], torch.ones(5, 2), r"its sum has the shape \(5,\), and \(6,\)"),
    ],
)
def test_a_parameter_that_became_longer_is_told_before_anything_changes(
    kind: Any, grad: Tensor, words: str
) -> None:
    first, param = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(5, 2))
    optimizer = kind([first, param])
    first.grad, param.grad = torch.ones(3), grad
    optimizer.step()
    before = first.detach().clone()
    param.grad = None
    param.data = torch.ones(6, 2)
    for later in (torch.ones(6, 2), named([5], n=6)):
        param.grad = later
        with pytest.raises(SparseError, match=rf"parameter 1 of group 0.*{words}.*no parameter was changed"):
            optimizer.step()
    assert torch.equal(first, before) and optimizer.state[first]["step"] == 1
