"""Leaving puts every patched name back as it was: the same object in its own class, inherited ones not left behind."""

import importlib
import sys

import pytest
import torch

import gradmend

# With taps of their own, and imported lazily.
for name in (
    "torch.distributed.distributed_c10d",
    "torch.utils.checkpoint",
    "torch.func",
    "torch.utils.dlpack",
):
    importlib.import_module(name)


def _owners():
    """Every module of torch, and every class in them: whatever a tap might have been put on."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch" and hasattr(module, "__dict__"):
            found[id(module)] = module
            for value in list(vars(module).values()):
                if isinstance(value, type) and str(value.__module__).startswith("torch"):
                    found[id(value)] = value
    return list(found.values())


_OWNERS = _owners()


_TORCHS_OWN = ("RemovableHandle.next_id",)  # counts every hook that was ever registered


def _snapshot():
    return [dict(vars(owner)) for owner in _OWNERS]


def _differences(before, after):
    return sorted(
        f"{getattr(owner, '__name__', owner)}.{name}"
        for owner, old, new in zip(_OWNERS, before, after, strict=True)
        for name in {*old, *new}
        if old.get(name, _differences) is not new.get(name, _differences)
    )


def _touch():
    # torch.ops and lazy modules fill in names when first used; that is not ours to undo.
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    torch.ops.aten.relu_(torch.ones(2))
    y.sum().backward()


def _watch():
    with gradmend.watch():
        _touch()


def _heal():
    with gradmend.heal():
        _touch()


def _nested():
    with gradmend.watch(), gradmend.heal():
        _touch()
        with gradmend.watch():
            _touch()


def _interrupted():
    with pytest.raises(KeyboardInterrupt), gradmend.watch():
        raise KeyboardInterrupt


def _conflict():
    with pytest.raises(gradmend.ConflictError), gradmend.watch():
        y = torch.ones(2, requires_grad=True).exp()
        y += 1
        y.sum().backward()


def _install():
    gradmend.install()
    _touch()
    gradmend.uninstall()


def _install_over_watch():
    with gradmend.watch():
        gradmend.install()
        _touch()
    gradmend.uninstall()


def _func():
    with gradmend.watch():
        torch.func.grad(lambda t: t.exp().sum())(torch.ones(2))


@pytest.mark.parametrize(
    "use", [_watch, _heal, _nested, _interrupted, _conflict, _install, _install_over_watch, _func]
)
def test_names_are_restored(use):
    use()  # what torch itself fills in at the first use is there now
    before, finders = _snapshot(), list(sys.meta_path)
    use()
    assert sys.meta_path == finders
    assert [d for d in _differences(before, _snapshot()) if d not in _TORCHS_OWN] == []


def test_every_patched_owner_is_in_the_snapshot():
    from gradmend.capture.taps import homes

    assert {id(p.owner) for p in homes.patches()} <= {id(owner) for owner in _OWNERS}


def test_the_snapshot_sees_a_name_left_behind():
    before = _snapshot()
    torch.Tensor.add_ = torch.Tensor.add_  # the inherited one, now the class's own: a leftover
    try:
        assert _differences(before, _snapshot()) == ["Tensor.add_"]
    finally:
        del torch.Tensor.add_


def test_inherited_names_are_inherited_again():
    assert "add_" not in vars(torch.Tensor)
    with gradmend.watch():
        assert "add_" in vars(torch.Tensor)
    assert "add_" not in vars(torch.Tensor)


def test_hooks_are_as_before():
    hooks = torch._C._autograd._top_saved_tensors_default_hooks
    before = hooks(False)
    with gradmend.watch():
        assert hooks(False) != before
    assert hooks(False) == before
