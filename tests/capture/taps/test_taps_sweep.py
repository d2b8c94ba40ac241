"""Each in-place op and each `out=` of PyTorch's own op database, on a tensor that backward needs.

The bytes are the oracle: where the op changed them, watch() names the op and this file's line; where not, backward runs.
"""

import functools
import inspect
import random

import pytest
import torch
from kept import saved_by_mul, written_while_kept
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_unary_op_db,
    op_db,
)

from gradmend.capture.taps.homes import patches

_ORIGINAL = "__gradmend_original__"
DTYPES = (torch.float64, torch.int64, torch.bool, torch.complex128)


def _sample(op, dtype, want):
    torch.manual_seed(7)
    random.seed(7)
    options = {"noncontiguous": False} if op in foreach else {}
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False, **options):
        if want(sample):
            return sample
    return None


def _with_dtype(op):
    for dtype in DTYPES:
        if op.supports_dtype(dtype, "cpu"):
            return dtype
    return None


def _line(frame):
    return inspect.getframeinfo(frame).lineno


def _check(conflict, session, changed, op, at):
    if not changed:
        assert conflict is None
        return
    assert conflict is not None, "the bytes changed, and nobody said so"
    first = conflict.writes[0]
    assert first.op == op
    assert (first.site.user.file, first.site.user.line) == (__file__, at)
    assert (conflict.culprits[0].file, conflict.culprits[0].line) == (__file__, at)


in_place = [op for op in op_db if op.inplace_variant is not None and _with_dtype(op) is not None]


@pytest.mark.parametrize("op", in_place, ids=lambda op: op.full_name)
def test_in_place_variant(op):
    dtype = _with_dtype(op)
    variant = op.inplace_variant

    def fits(sample):
        if not isinstance(sample.input, torch.Tensor) or not sample.input.numel() or sample.broadcasts_input:
            return False
        try:
            variant(sample.input.clone(), *sample.args, **sample.kwargs)
        except Exception:
            return False
        return True

    sample = _sample(op, dtype, fits)
    if sample is None:
        pytest.skip("no sample that the in-place form accepts")
    target = sample.input.clone()
    # Functionals with inplace=True are lambdas here, which reach their op by name; methods were taken hold of.
    name = getattr(variant, "__name__", op.name)  # or partials
    method = hasattr(torch.Tensor, name)
    at = []

    def write(t):
        call = getattr(torch.Tensor, name) if method else variant
        at.append(_line(inspect.currentframe()) + 1)
        call(t, *sample.args, **sample.kwargs)

    conflict, session, changed = written_while_kept(target, write)
    _check(conflict, session, changed, name if method else _reached(op), at[0])


def _reached(op):
    """What `F.relu(x, inplace=True)` comes to."""
    short = op.name.rpartition(".")[2]
    return "feature_dropout_" if short in ("dropout2d", "dropout3d") else f"{short}_"


with_out = [op for op in op_db if op.supports_out and _with_dtype(op) is not None]


def _plain(result):
    return isinstance(result, torch.Tensor) and result.layout == torch.strided and result.numel() > 0


@pytest.mark.parametrize("op", with_out, ids=lambda op: op.full_name)
def test_out_argument(op):
    dtype = _with_dtype(op)

    def fits(sample):
        try:
            result = op(sample.input, *sample.args, **sample.kwargs)
        except Exception:
            return False
        parts = result if isinstance(result, (tuple, list)) else (result,)
        return all(_plain(part) for part in parts)

    sample = _sample(op, dtype, fits)
    if sample is None:
        pytest.skip("no sample with a strided, filled result")
    result = op(sample.input, *sample.args, **sample.kwargs)
    several = isinstance(result, (tuple, list))
    outs = [torch.zeros_like(part) for part in (result if several else (result,))]
    # op_db took hold of its functions before the taps were on; a program calls them by name.
    named = {id(p.value.__gradmend_original__): p.value for p in patches() if hasattr(p.value, _ORIGINAL)}
    call = functools.partial(named.get(id(op.op), op.op), sample.input, *sample.args, **sample.kwargs)
    at = []

    def write(_):
        at.append(_line(inspect.currentframe()) + 1)
        call(out=tuple(outs) if several else outs[0])

    try:
        write(None)
    except Exception:
        pytest.skip("this sample takes no out=")
    for out in outs:
        out.zero_()
    at.clear()
    for out in outs:
        other = [o for o in outs if o is not out]
        keep = [saved_by_mul(o) for o in other]
        conflict, session, changed = written_while_kept(out, write)
        # norm(out=) and the like are written in Python: the op told is the one that they reach.
        told = conflict.writes[0].op if conflict else None
        assert told is None or told.endswith(("(out=)", "_")) or "batch_norm" in told
        _check(conflict, session, changed, told, at[-1])
        del keep
        for o in outs:
            o.zero_()


foreach = [
    op
    for op in (*foreach_unary_op_db, *foreach_binary_op_db, *foreach_pointwise_op_db, *foreach_other_op_db)
    if op.inplace_variant is not None and _with_dtype(op) is not None
]


@pytest.mark.parametrize("op", foreach, ids=lambda op: op.name)
def test_foreach_variant(op):
    name = (
        f"{op.name}_"  # since 2.15 its in-place form is torch.foreach.exp_, which calls torch._foreach_exp_
    )

    def fits(sample):
        if len(sample.input) < 2 or not all(t.numel() for t in sample.input):
            return False
        try:
            op.inplace_variant([t.clone() for t in sample.input], *sample.args, **sample.kwargs)
        except Exception:
            return False
        return True

    sample = _sample(op, _with_dtype(op), fits)
    if sample is None:
        pytest.skip("no sample that the in-place form accepts")
    targets = [t.clone() for t in sample.input]
    at = []

    def write(_):
        at.append(_line(inspect.currentframe()) + 1)
        getattr(torch, name)(targets, *sample.args, **sample.kwargs)

    conflict, session, changed = written_while_kept(targets[1], write)
    _check(conflict, session, changed, name, at[0])
