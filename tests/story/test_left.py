"""A write after watch() or heal() was left: told as what it is, with the line where the source has it."""

import pytest
import torch

import gradmend


def _line(text):
    """The line of this file with this mark."""
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}"))


def _conflict(caught, kind):
    conflict = caught.value.conflict
    assert (conflict.rule, conflict.kind) == ("GM110", kind)
    return conflict


@pytest.fixture(params=[gradmend.watch, gradmend.heal], ids=["watch", "heal"])
def context(request):
    return request.param


def test_in_place(context):
    w = torch.ones(3, requires_grad=True)
    with context():
        y = w.exp()
        loss = (y * 2).sum()
    y.mul_(3)  # in place
    with pytest.raises(gradmend.ConflictError) as caught:
        loss.backward()
    conflict = _conflict(caught, "error")
    assert f"`y` was changed in place after gradmend.{context.__name__}() was left" in conflict.message
    assert [c.line for c in conflict.culprits] == [_line("in place")]
    told = str(caught.value)
    assert "this line may have changed it" in told and "compiled" not in told
    assert f"keep gradmend.{context.__name__}() open until" in told


def test_through_data(context):
    w = torch.ones(3, requires_grad=True)
    with context():
        y = w.exp()
        loss = (y * 2).sum()
    w.grad = torch.zeros(3)
    w.grad.add_(1)
    y.data[0] = 3.0  # by data
    with pytest.raises(gradmend.ConflictError) as caught:
        loss.backward()
    assert [c.line for c in _conflict(caught, "silent").culprits] == [_line("by data")]
    assert "outside torch" not in str(caught.value)


def test_by_a_step(context):
    w = torch.ones(3, requires_grad=True)
    w.grad = torch.ones(3)
    optimizer = torch.optim.SGD([w], lr=0.1)

    @context
    def forward():
        return (w * w).sum()

    loss = forward()
    optimizer.step()  # steps
    with pytest.raises(gradmend.ConflictError) as caught:
        loss.backward()
    assert [c.line for c in _conflict(caught, "error").culprits] == [_line("steps")]


def test_no_line_is_named_that_does_not_write_it(context):
    w = torch.ones(3, requires_grad=True)
    with context():
        y = w.exp()
        loss = (y * 2).sum()
    other, z = torch.zeros(3), y
    other.add_(1)
    z.mul_(2)
    with pytest.raises(gradmend.ConflictError) as caught:
        loss.backward()
    assert [c.op for c in _conflict(caught, "error").culprits] == ["exp", "backward"]


def test_a_write_seen_inside_is_not_blamed():
    w = torch.ones(3, requires_grad=True)
    with gradmend.heal():
        y = w.exp()
        loss = (y * 2).sum()
        y.add_(1)
    y.mul_(3)  # after the healed one
    with pytest.raises(gradmend.ConflictError) as caught:
        loss.backward()
    conflict = _conflict(caught, "error")
    assert not conflict.writes and [c.line for c in conflict.culprits] == [_line("after the healed one")]


def test_an_unseen_write_inside_is_none_of_later():
    add_ = torch._C.TensorBase.add_
    w = torch.ones(3, requires_grad=True)
    with gradmend.heal():
        y = w.exp()
        loss = (y * 2).sum()
        add_(y, 1)
    y.mul_(3)
    with pytest.raises(gradmend.ConflictError, match="something unseen changed `y`"):
        loss.backward()


def test_an_array_handed_out_inside_is_still_the_first_suspect():
    w, t = torch.ones(3, requires_grad=True), torch.ones(3)
    with gradmend.heal():
        loss = (w * t).sum()
        array = t.numpy()
    array[0] = 5
    with pytest.raises(gradmend.ConflictError) as caught:
        loss.backward()
    assert caught.value.conflict.rule == "GM202"


def test_on_ctx():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * ctx.x * grad

    w = torch.ones(3, requires_grad=True)
    with gradmend.watch():
        h = w * 1
        loss = Double.apply(h).sum()
    h.data.mul_(2)
    with pytest.raises(gradmend.ConflictError, match=r"changed after gradmend\.watch\(\) was left"):
        loss.backward()


def test_with_the_recorder_installed_it_is_seen_and_healed():
    w = torch.ones(3, requires_grad=True)
    gradmend.install()
    try:
        with gradmend.heal() as session:
            y = w.exp()
            loss = (y * 2).sum()
        y.mul_(3)  # recorded
        with pytest.warns(gradmend.GradmendWarning, match="healed"):
            loss.backward()
    finally:
        gradmend.uninstall()
    assert torch.equal(w.grad, 2 * torch.ones(3).exp())
    assert [c.line for c in session.conflicts[0].culprits] == [_line("recorded")]
