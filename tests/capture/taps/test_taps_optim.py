"""An optimizer's step between forward and backward: named by the line that called step(), in every form there is."""

import inspect

import pytest
import torch
from kept import line_of

import gradmend

names = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
)


def _forms():
    for name in names:
        known = inspect.signature(getattr(torch.optim, name)).parameters
        yield name, {}
        for form in ("foreach", "fused"):
            if form in known:
                yield name, {form: True}
        if "foreach" in known:
            yield name, {"foreach": False}


def _made(name, settings):
    torch.manual_seed(0)
    # A matrix, for those that take nothing else (Muon); two of them, so that foreach has a list.
    params = [torch.nn.Parameter(torch.randn(4, 4)) for _ in range(2)]
    kind = getattr(torch.optim, name)
    if "lr" in inspect.signature(kind).parameters:
        settings = {"lr": 0.1, **settings}
    return params, kind(params, **settings)


def _step(optimizer, closure):
    optimizer.step(closure)  # here


@pytest.mark.parametrize(
    ("name", "form"),
    list(_forms()),
    ids=lambda v: v if isinstance(v, str) else "".join(f"{k}={v[k]}" for k in v),
)
def test_step_before_backward_is_named(name, form):
    params, optimizer = _made(name, form)
    before = [p.detach().clone() for p in params]

    def closure():
        return torch.zeros(())

    def gradients():
        for p in params:
            grad = torch.randn(4, 4)
            p.grad = grad.to_sparse(1) if name == "SparseAdam" else grad

    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        loss = sum((p * p).sum() for p in params)
        gradients()
        for _ in range(3):  # ASGD and others move the parameters from the second step on
            _step(optimizer, closure if name == "LBFGS" else None)
        assert not all(torch.equal(p, b) for p, b in zip(params, before, strict=True))
        loss.backward()
    conflict = caught.value.conflict
    site = conflict.writes[0].site
    assert (site.user.file, site.user.line) == (__file__, line_of(_step))
    assert "optim" in site.frames[0].file
    assert (conflict.culprits[0].file, conflict.culprits[0].line) == (__file__, line_of(_step))


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_a_fused_step_is_silent_without_us(name):
    """torch 2.13: fused=True steps no version counter, so plain PyTorch goes on with a wrong gradient."""
    params, optimizer = _made(name, {"fused": True})
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        loss = sum((p * p).sum() for p in params)
        for p in params:
            p.grad = torch.randn(4, 4)
        optimizer.step()
        loss.backward()
    assert caught.value.conflict.kind == "silent"
    assert caught.value.conflict.writes[0].op.startswith("_fused_")


def test_a_step_after_backward_is_nothing_to_tell():
    params, optimizer = _made("Adam", {})
    with gradmend.watch() as session:
        for _ in range(3):
            optimizer.zero_grad()
            sum((p * p).sum() for p in params).backward()
            optimizer.step()
    assert session.outcome == "clean" and not session.conflicts
