"""Every op whose schema says that it writes a tensor, under every name that Python reaches it by, has a tap."""

import inspect
import types

import pytest
import torch

import gradmend

_HOMES = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.functional": torch.functional,
    "torch.nn.functional": torch.nn.functional,
    "torch.nn.init": torch.nn.init,
    "torch.linalg": torch.linalg,
    "torch.special": torch.special,
    "torch.fft": torch.fft,
    "torch.sparse": torch.sparse,
    "torch._VF": torch._VF,
    "torch._C._nn": torch._C._nn,
    "torch._C._linalg": torch._C._linalg,
    "torch._C._special": torch._C._special,
    "torch._C._fft": torch._C._fft,
    "torch._C._sparse": torch._C._sparse,
    "torch._C._nested": torch._C._nested,
}
_PREFIXES = ("linalg_", "special_", "fft_", "sparse_", "nested_")

# They change a list of tensors, or what the allocator knows of a tensor: no byte of any.
_NO_WRITE = {
    *"Delete _set_item clear pop popitem remove setdefault update".split(),
    *"record_stream retain_grad".split(),
}


def _writes_a_tensor(arg):
    return arg.alias_info is not None and arg.alias_info.is_write and "Tensor" in str(arg.type)


def _writing_schemas():
    for schema in torch._C._jit_get_all_schemas():
        written = [a for a in schema.arguments if _writes_a_tensor(a)]
        space, _, name = schema.name.partition("::")
        if name in _NO_WRITE or (name, schema.overload_name) == ("sort", "Tensor"):  # that one sorts a list
            continue
        if written:
            yield space, name, all(a.is_out or a.kwarg_only for a in written), schema


def _reached_as(name):
    yield name
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            yield name.removeprefix(prefix)


def _is_builtin(value):
    """What is written in Python reaches the write through builtins, which have taps of their own."""
    value = getattr(value, "__gradmend_original__", value)
    return not isinstance(value, (types.ModuleType, types.FunctionType, type))


def _reachable():
    """(label, home, name) of every builtin that can be asked to write."""
    for space, name, only_out, _ in _writing_schemas():
        if space != "aten" or (only_out and name.startswith("__")):
            continue
        for label, home in _HOMES.items():
            if only_out and home is torch.Tensor:
                continue  # methods take no out=
            for alias in _reached_as(name):
                if hasattr(home, alias) and _is_builtin(getattr(home, alias)):
                    yield label, home, alias


def _untapped():
    with gradmend.watch():
        return {
            f"{label}.{name}"
            for label, home, name in reachable
            if not hasattr(getattr(home, name), "__gradmend_original__")
        }


reachable = sorted(set(_reachable()), key=lambda r: (r[0], r[2]))


def test_every_name_of_a_writing_op_is_tapped():
    assert len(reachable) > 1000
    assert not _untapped()


def test_every_overload_of_torch_ops_that_writes_is_known():
    from gradmend.capture.taps.homes import _overload_table

    missing, seen = [], 0
    for space, name, _, schema in _writing_schemas():
        packet = getattr(getattr(torch.ops, space), name, None)
        overload = getattr(packet, schema.overload_name or "default", None)
        if overload is None:
            continue
        expected = {a.name for a in schema.arguments if _writes_a_tensor(a)}
        for op in (packet, overload):
            known = _overload_table(op)
            told = set() if known is None else {n for _, n in known[1].args} | set(known[1].outs)
            seen += 1
            if not expected <= told:
                missing.append((str(op), expected - told))
    assert seen > 2000
    assert not missing


@pytest.mark.parametrize(
    "name",
    "__iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ "
    "__ilshift__ __irshift__ __setitem__ data real imag set_ apply_ map_ map2_".split(),
)
def test_names_that_no_schema_tells_are_tapped(name):
    plain = inspect.getattr_static(torch.Tensor, name)
    with gradmend.watch():
        assert inspect.getattr_static(torch.Tensor, name) is not plain
    assert inspect.getattr_static(torch.Tensor, name) is plain


def test_a_gap_would_be_seen():
    with gradmend.watch():
        tapped = torch.relu_
        try:
            torch.relu_ = tapped.__gradmend_original__
            assert _untapped() == {"torch.relu_"}
        finally:
            torch.relu_ = tapped
