"""Each way to write that the Python API has, on a tensor that backward needs: named by op and line."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from kept import line_of, saved_by_mul, written_while_kept
from torch import nn

import gradmend


def floats(*shape):
    torch.manual_seed(0)
    return torch.rand(*(shape or (4, 4)), dtype=torch.float64) - 0.5


def ints():
    return torch.tensor([[3, 5, 6], [9, 10, 12]])


def _add(t):
    t += 1  # here


def _sub(t):
    t -= 1  # here


def _mul(t):
    t *= 3  # here


def _div(t):
    t /= 3  # here


def _floordiv(t):
    t //= 2  # here


def _mod(t):
    t %= 2  # here


def _pow(t):
    t **= 2  # here


def _and(t):
    t &= 1  # here


def _or(t):
    t |= 16  # here


def _xor(t):
    t ^= 5  # here


def _lshift(t):
    t <<= 1  # here


def _rshift(t):
    t >>= 1  # here


def _self_mul(t):
    t *= t  # here


def _self_mul_method(t):
    t.mul_(t)  # here


@pytest.mark.parametrize(
    ("write", "make", "op"),
    [
        (_add, floats, "__iadd__"),
        (_sub, floats, "__isub__"),
        (_mul, floats, "__imul__"),
        (_div, floats, "__itruediv__"),
        (_floordiv, floats, "__ifloordiv__"),
        (_mod, floats, "__imod__"),
        (_pow, floats, "__ipow__"),
        (_and, ints, "__iand__"),
        (_or, ints, "__ior__"),
        (_xor, ints, "__ixor__"),
        (_lshift, ints, "__ilshift__"),
        (_rshift, ints, "__irshift__"),
        (_self_mul, floats, "__imul__"),
        (_self_mul_method, floats, "mul_"),
    ],
    ids=lambda v: v.__name__ if callable(v) else v,
)
def test_operator(write, make, op):
    t = make()
    conflict, _, changed = written_while_kept(t, write)
    assert changed and conflict is not None
    _names(conflict, write, op)


def test_matmul_assignment_rebinds():
    def write(t):
        t @= t

    conflict, session, changed = written_while_kept(floats(), write)
    assert conflict is None and not changed and not session.conflicts


def _names(conflict, write, *ops):
    assert conflict.kind in ("error", "silent")
    first = conflict.writes[0]
    assert first.op in ops, first.op
    assert (first.site.user.file, first.site.user.line) == (__file__, line_of(write))
    assert (conflict.culprits[0].file, conflict.culprits[0].line) == (__file__, line_of(write))


def _set(t, key, value):
    t[key] = value  # here


mask = torch.tensor([True, False, True, False])
keys = {
    "int": 0,
    "negative": -1,
    "slice": slice(1, 3),
    "step": slice(None, None, 2),
    "ellipsis": ...,
    "none": None,
    "tuple": (0, slice(None)),
    "ellipsis-int": (..., 1),
    "none-int": (None, 1),
    "mask": mask,
    "mask-full": torch.eye(4, dtype=torch.bool),
    "index": torch.tensor([1, 3]),
    "indices": (torch.tensor([0, 1]), torch.tensor([2, 2])),
    "index-slice": (torch.tensor([0, 1]), slice(1, None)),
    "list": [0, 2],
    "bool": True,
    "tensor-scalar": torch.tensor(2),
}


@pytest.mark.parametrize("key", keys.values(), ids=keys)
def test_setitem(key):
    conflict, _, changed = written_while_kept(floats(), lambda t: _set(t, key, 7.0))
    assert changed and conflict is not None
    assert next(f.line for f in conflict.writes[0].site.users) == line_of(_set)
    assert conflict.writes[0].op == "__setitem__"


def _rows_inplace(t):
    t[1:] *= 2  # here


def _mask_inplace(t):
    t[mask] += 1  # here


def _chained(t):
    t[0][1] = 4  # here


@pytest.mark.parametrize(
    ("write", "op"),
    [(_rows_inplace, "__imul__"), (_mask_inplace, "__setitem__"), (_chained, "__setitem__")],
)
def test_setitem_with_an_operator(write, op):
    conflict, _, _ = written_while_kept(floats(), write)
    _names(conflict, write, op)


def _under_no_grad(t):
    with torch.no_grad():
        t.copy_(torch.zeros_like(t))  # here


def _under_inference_mode(t):
    with torch.inference_mode():
        t.copy_(torch.zeros_like(t))  # here


ways = {
    "torch.*_": (lambda t: torch.relu_(t), "relu_"),
    "out": (lambda t: torch.add(t, 1, out=t), "add(out=)"),
    "out-tuple": (
        lambda t: torch.max(floats(), 1, out=(t[0], torch.empty(4, dtype=torch.long))),
        "max(out=)",
    ),
    "out-other": (lambda t: torch.mm(floats(), floats(), out=t), "mm(out=)"),
    "out-sort": (lambda t: torch.sort(floats(), out=(t, torch.empty(4, 4, dtype=torch.long))), "sort(out=)"),
    "out-linalg": (lambda t: torch.linalg.inv(floats(), out=t), "linalg_inv(out=)"),
    "out-norm-positional": (lambda t: torch.norm(floats(), 2, 0, False, t[0]), "linalg_vector_norm(out=)"),
    "out-normalize": (lambda t: F.normalize(floats(), out=t), "div(out=)"),
    "F.relu": (lambda t: F.relu(t, inplace=True), "relu_"),
    "F.dropout": (lambda t: F.dropout(t, 0.5, inplace=True), "dropout_"),
    "F.elu": (lambda t: F.elu(t, inplace=True), "elu_"),
    "F.hardtanh": (lambda t: F.hardtanh(t, -0.1, 0.1, inplace=True), "hardtanh_"),
    "F.leaky_relu": (lambda t: F.leaky_relu(t, inplace=True), "leaky_relu_"),
    "F.silu": (lambda t: F.silu(t, inplace=True), "silu_"),
    "F.threshold": (lambda t: F.threshold(t, 0.1, 9.0, inplace=True), "threshold_"),
    "nn.ReLU": (lambda t: nn.ReLU(inplace=True)(t), "relu_"),
    "nn.Hardswish": (lambda t: nn.Hardswish(inplace=True)(t), "hardswish_"),
    "nn.Dropout": (lambda t: nn.Dropout(inplace=True)(t), "dropout_"),
    "foreach": (lambda t: torch._foreach_mul_([t, floats()], 2), "_foreach_mul_"),
    "foreach-copy": (lambda t: torch._foreach_copy_([t], [floats() * 3]), "_foreach_copy_"),
    "data": (lambda t: t.data.zero_(), "zero_"),
    "data-setitem": (lambda t: t.data.__setitem__(0, 9.0), "__setitem__"),
    "detach": (lambda t: t.detach().zero_(), "zero_"),
    "view": (lambda t: t.view(-1)[3:7].fill_(3.0), "fill_"),
    "as_strided": (lambda t: t.as_strided((4,), (5,)).fill_(3.0), "fill_"),
    "transpose": (lambda t: t.t()[0].fill_(3.0), "fill_"),
    "nn.init": (lambda t: nn.init.constant_(t, 3.0), "fill_"),
    "nn.init.uniform_": (lambda t: nn.init.uniform_(t), "uniform_"),
    "nn.init.xavier": (lambda t: nn.init.xavier_normal_(t), "normal_"),
    "nn.init.orthogonal": (lambda t: nn.init.orthogonal_(t), "copy_"),
    "nn.init.trunc_normal": (lambda t: nn.init.trunc_normal_(t), "normal_"),
    "random": (lambda t: t.normal_(), "normal_"),
    "apply_": (lambda t: t.apply_(math.exp), "apply_"),
    "map_": (lambda t: t.map_(floats(), lambda a, b: a + b + 1), "map_"),
    "ops.packet": (lambda t: torch.ops.aten.mul_(t, 2), "mul_"),
    "ops.overload": (lambda t: torch.ops.aten.mul_.Tensor(t, torch.tensor(2.0)), "mul_"),
    "ops.out": (lambda t: torch.ops.aten.add.out(t, t, out=t), "add"),
    "storage": (lambda t: t.untyped_storage().fill_(7), "storage.fill_"),
    "clamp-list": (
        lambda t: torch.nn.utils.clip_grad_value_([_with_grad(t)], 0.1),
        "_foreach_clamp_min_",
        "clamp_",
    ),
    "no_grad": (_under_no_grad, "copy_"),
    "inference_mode": (_under_inference_mode, "copy_"),
}


def _with_grad(t):
    p = nn.Parameter(torch.zeros_like(t))
    p.grad = t
    return p


@pytest.mark.parametrize("way", ways)
def test_way(way):
    write, *ops = ways[way]
    conflict, _, changed = written_while_kept(floats(), write)
    assert changed and conflict is not None
    _names(conflict, write, *ops)


def test_data_assignment_harms_what_reads_the_tensor_itself():
    """PyTorch 2.13: a Conv's saved weight is the Parameter itself, which then has other memory."""
    conv = nn.Conv1d(1, 1, 2)

    def write():
        conv.weight.data = conv.weight.data * 2  # here

    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        loss = conv(torch.ones(1, 1, 4, requires_grad=True)).sum()
        write()
        loss.backward()
    assert caught.value.conflict.writes[0].op == ".data ="
    assert caught.value.conflict.writes[0].site.user.line == line_of(write)


def test_vector_to_parameters_is_a_data_assignment():
    conv = nn.Conv1d(1, 1, 2, bias=False)

    def write():
        nn.utils.vector_to_parameters(torch.zeros(2), conv.parameters())  # here

    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        loss = conv(torch.ones(1, 1, 4, requires_grad=True)).sum()
        write()
        loss.backward()
    _names(caught.value.conflict, write, ".data =")


def test_swap_tensors_is_refused_by_torch_while_autograd_holds_one():
    conv = nn.Conv1d(1, 1, 2, bias=False)
    right = conv.weight.detach().sum()
    with gradmend.watch():
        x = torch.ones(1, 1, 4, requires_grad=True)
        loss = conv(x).sum()
        with pytest.raises(RuntimeError, match=r"swap|use_count"):
            torch.utils.swap_tensors(conv.weight, nn.Parameter(torch.zeros(1, 1, 2)))
        loss.backward()
    assert torch.equal(x.grad[0, 0, 1], right)


def test_real_and_imag_assignment():
    def real(t):
        t.real = torch.zeros(3)  # here

    def imag(t):
        t.imag = torch.zeros(3)  # here

    for write, op in ((real, ".real ="), (imag, ".imag =")):
        conflict, _, changed = written_while_kept(torch.full((3,), 1 + 2j), write)
        assert changed
        _names(conflict, write, op)


def _kept_in_module(module, call, write):
    with gradmend.watch() as session:
        loss = call(module)
        write(module)
        try:
            loss.backward()
        except gradmend.ConflictError as error:
            return error.conflict
    return session.conflicts[0] if session.conflicts else None


def test_load_state_dict():
    model = nn.Linear(3, 3)
    other = copy.deepcopy(model)
    nn.init.zeros_(other.weight)

    def write(model):
        model.load_state_dict(other.state_dict())  # here

    conflict = _kept_in_module(model, lambda m: m(torch.ones(2, 3, requires_grad=True)).sum(), write)
    _names(conflict, write, "copy_")


def test_batch_norm_running_statistics():
    """In eval the statistics are read by backward; a train-mode call in between changes them, with no version step."""
    bn = nn.BatchNorm1d(3).eval()

    def write(bn):
        bn.train()
        bn(torch.randn(8, 3) * 5)  # here

    conflict = _kept_in_module(bn, lambda m: m(torch.randn(4, 3, requires_grad=True)).sum(), write)
    _names(conflict, write, "batch_norm")
    assert conflict.kind == "silent"


def test_instance_norm_running_statistics():
    norm = nn.InstanceNorm1d(3, track_running_stats=True).eval()

    def write(norm):
        norm.train()
        norm(torch.randn(2, 3, 8) * 5)  # here

    # Its own backward reads copies of them (torch 2.13 repeats them for each sample).
    conflict = _kept_in_module(norm, lambda m: saved_by_mul(m.running_mean), write)
    _names(conflict, write, "instance_norm")


def test_embedding_max_norm():
    weight = (torch.rand(5, 3) + 3).requires_grad_()

    def write():
        F.embedding(torch.tensor([1, 2]), weight, max_norm=1.0)  # here

    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        loss = (weight * weight).sum()
        write()
        loss.backward()
    _names(caught.value.conflict, write, "embedding_renorm_")


def test_embedding_bag_max_norm():
    weight = (torch.rand(5, 3) + 3).requires_grad_()

    def write():
        F.embedding_bag(torch.tensor([[1, 2]]), weight, max_norm=1.0)  # here

    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        loss = (weight * weight).sum()
        write()
        loss.backward()
    _names(caught.value.conflict, write, "embedding_renorm_")


@pytest.mark.parametrize("how", ["hook", "parametrization"])
def test_spectral_norm(how):
    make = nn.utils.spectral_norm if how == "hook" else nn.utils.parametrizations.spectral_norm
    torch.manual_seed(0)
    layer = make(nn.Linear(4, 4))
    vectors = list(layer.buffers())

    def write(layer):
        layer(torch.ones(1, 4))  # here

    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        loss = sum(saved_by_mul(v) for v in vectors)
        write(layer)
        loss.backward()
    assert caught.value.conflict.writes[0].site.user.line == line_of(write)


@pytest.mark.parametrize(
    ("op", "make"),
    [
        ("t_", lambda t: t.t_()),
        ("transpose_", lambda t: t.transpose_(0, 1)),
        ("swapaxes_", lambda t: t.swapaxes_(0, 1)),
        ("squeeze_", lambda t: t.squeeze_()),
        ("unsqueeze_", lambda t: t.unsqueeze_(0)),
        ("as_strided_", lambda t: t.as_strided_((2,), (1,))),
    ],
)
def test_metadata_writes_are_told_not_punished(op, make):
    """They step the counter, so PyTorch refuses, although no byte of what backward reads has changed."""
    conflict, session, changed = written_while_kept(floats(), make)
    assert not changed and conflict is None
    (told,) = session.conflicts
    assert told.kind == "refused-but-right"
    assert told.writes[0].op == op
    assert told.writes[0].how == "metadata"
    assert told.writes[0].site.user.line == line_of(make)


def test_set_puts_other_memory_under_a_saved_leaf():
    def write(t):
        t.set_(torch.zeros(3, dtype=torch.float64))  # here

    conflict, _, _ = written_while_kept(floats(), write)
    _names(conflict, write, "set_")
    assert conflict.writes[0].how == "metadata"


def test_resize_and_detach():
    def grow(t):
        t.resize_(64)  # here
        t.fill_(9.0)

    conflict, _, changed = written_while_kept(floats(), grow)
    assert conflict is None or conflict.writes[0].op in ("resize_", "fill_")
    assert changed is (conflict is not None)

    conflict, _, changed = written_while_kept(floats(), lambda t: t.detach_())
    assert conflict is None and not changed


def test_rows_against_columns_and_even_against_odd_do_not_meet():
    t = floats()
    with gradmend.watch() as session:
        even = saved_by_mul(t.view(-1)[::2])
        row = saved_by_mul(t[0])
        t.view(-1)[1::2] = 7.0
        even.backward()
        with pytest.raises(gradmend.ConflictError):
            row.backward()
    assert [c.kind for c in session.conflicts] == ["refused-but-right", "error"]


def test_a_numpy_round_trip_is_the_same_memory():
    t = floats()

    def write(t):
        torch.from_numpy(t.numpy()).zero_()  # here

    conflict, _, changed = written_while_kept(t, write)
    assert changed
    _names(conflict, write, "zero_")
    assert conflict.kind == "silent"


def test_a_library_that_writes_is_told_with_its_caller(tmp_path, monkeypatch):
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "careless_library.py").write_text("def scale(t):\n    t.mul_(2)\n")
    monkeypatch.syspath_prepend(str(package))
    import careless_library

    def write(t):
        careless_library.scale(t)  # here

    conflict, _, _ = written_while_kept(floats(), write)
    _names(conflict, write, "mul_")
    library = conflict.writes[0].site.library
    assert (library.file, library.line) == (str(package / "careless_library.py"), 2)
