"""How Saves enter the ledger, with and below other people's hooks."""

import pytest
import torch
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks

import gradmend
from gradmend.capture.hooks import gradients
from gradmend.capture.ledger import scopes
from gradmend.capture.ledger.entries import Save
from gradmend.capture.taps import switch

_top = torch._C._autograd._top_saved_tensors_default_hooks


def packed(y):
    return y.grad_fn._raw_saved_result.data


def leaf():
    return torch.ones(3, requires_grad=True)


def test_a_save_is_an_entry_that_holds_no_graph():
    with gradmend.watch():
        y = leaf().exp()
        entry = packed(y)
    assert isinstance(entry, Save)
    assert entry.handle.grad_fn is None
    assert entry.handle.untyped_storage()._cdata == y.untyped_storage()._cdata
    assert entry.version == 0


def test_a_graph_made_under_watch_is_freed_without_the_collector():
    import gc
    import weakref

    gc.collect()
    gc.disable()
    try:
        with gradmend.watch():
            x = leaf()
            y = x.exp()
            z = (y * y).sum()
            entry = weakref.ref(packed(y))
            del y, z
            assert entry() is None
    finally:
        gc.enable()


def test_outside_nothing_is_packed():
    with gradmend.watch():
        pass
    assert not isinstance(packed(leaf().exp()), Save)


def test_inner_hooks_pack_and_unpack_as_they_would():
    seen = []

    def pack(t):
        seen.append("pack")
        return ("mine", t)

    def unpack(made):
        seen.append("unpack")
        assert made[0] == "mine"
        return made[1]

    with gradmend.watch():
        x = leaf()
        with saved_tensors_hooks(pack, unpack):
            y = x.exp()
        y.sum().backward()
    assert seen == ["pack", "unpack"]
    torch.testing.assert_close(x.grad, y.detach())


def test_a_tensor_that_inner_hooks_keep_is_still_watched():
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        with saved_tensors_hooks(lambda t: [t], lambda made: made[0]):
            y = leaf().exp()
        y += 1
        y.sum().backward()
    assert caught.value.conflict.writes[0].op == "__iadd__"


def test_a_copy_that_inner_hooks_keep_is_theirs():
    x = leaf()
    with gradmend.watch() as session:
        with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            y = x.exp()
            z = (y * y).sum()
        y += 1
        z.backward()
    torch.testing.assert_close(x.grad, 2 * torch.ones(3).mul(2).exp())
    assert session.outcome == "clean"


def test_inner_hooks_that_keep_a_number():
    store = {}

    def pack(t):
        store[len(store)] = t.clone()
        return len(store) - 1

    x = leaf()
    with gradmend.heal():
        with saved_tensors_hooks(pack, store.__getitem__):
            y = (x.exp() * 2).sum()
        y.backward()
    torch.testing.assert_close(x.grad, 2 * torch.ones(3).exp())


def test_errors_of_inner_hooks_are_theirs():
    def pack(t):
        raise KeyError("mine")

    with gradmend.watch(), saved_tensors_hooks(pack, lambda t: t), pytest.raises(KeyError, match="mine"):
        leaf().exp()
    assert _top(False) is None


def test_where_hooks_are_refused_pytorchs_own_check_stays():
    """Inside torch.func and disable_saved_tensors_hooks nobody may enter hooks (torch 2.13 raises)."""
    with disable_saved_tensors_hooks("none of that"):
        with gradmend.watch(), pytest.raises(RuntimeError, match="inplace operation"):
            y = leaf().exp()
            y += 1
            y.sum().backward()
        assert not switch.armed() and scopes.current() is None
    with gradmend.watch(), pytest.raises(gradmend.ConflictError):
        y = leaf().exp()
        y += 1
        y.sum().backward()
    assert _top(False) is None


def test_inside_a_function_that_torch_func_differentiates():
    def body(t):
        with gradmend.watch():
            return (t * t).sum()

    assert torch.equal(torch.func.grad(body)(torch.ones(3)), torch.full((3,), 2.0))
    with gradmend.heal():
        assert torch.equal(torch.func.grad(body)(torch.ones(3)), torch.full((3,), 2.0))
        assert isinstance(packed(leaf().exp()), Save)
    assert not switch.armed() and _top(False) is None


def test_hooks_entered_outside_work_on(monkeypatch):
    monkeypatch.setattr(
        gradients, "_alone", {}
    )  # as at the first context of all, which measures: they see none of it
    calls = []

    def pack(t):
        calls.append(t.shape)
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        leaf().exp()
        with gradmend.watch():
            leaf().exp()
        leaf().exp()
    assert len(calls) == 3
    assert _top(False) is None


def test_hooks_entered_outside_work_on_and_their_tensors_are_watched():
    x = leaf()
    with saved_tensors_hooks(lambda t: (t,), lambda made: made[0]), gradmend.heal() as session:
        y = x.exp()
        z = (y * y).sum()
        y.zero_()
        z.backward()
    torch.testing.assert_close(x.grad, 2 * torch.ones(3).mul(2).exp())
    assert session.outcome == "healed"


def test_the_slot_of_a_save_is_known_when_it_is_asked_for():
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        a, b = leaf() * 2, leaf() * 3
        out = (a * b).sum()
        b.zero_()
        out.backward()
    saved = caught.value.conflict.saved
    assert (saved.node, saved.op, saved.slot) == ("MulBackward0", "mul", "other")
    assert saved.tensor.name == "b"


@pytest.mark.parametrize("scope", [gradmend.watch, gradmend.heal])
def test_hooks_of_the_program_stay_on_where_torch_func_refuses_them(scope):
    packed = []
    x = torch.ones(3, requires_grad=True)
    with scope(), saved_tensors_hooks(lambda t: packed.append(t) or t.clone(), lambda t: t):
        with pytest.raises(RuntimeError, match="saved tensor hooks"):
            torch.func.grad(lambda t: (t * t).sum())(torch.ones(3))
        (x * x).sum().backward()
    assert packed and x.grad.tolist() == [2, 2, 2]
