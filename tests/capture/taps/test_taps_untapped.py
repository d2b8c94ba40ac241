"""Nothing untapped passes: a Write that no tap saw stops backward as an unknown one (GM110), and never in silence.

While our hooks are on, PyTorch's own check is off for a Save's whole life, also after the context is left.
"""

import pytest
import torch
from kept import saved_by_mul

import gradmend

plain_add_ = torch.Tensor.add_
plain_mul_ = torch.ops.aten.mul_.Tensor._op
plain_zero_ = torch._C.TensorBase.zero_


def _compiled(backend):
    @torch.compile(backend=backend, fullgraph=True)
    def double(t):
        t.mul_(2.0)
        return t + 1

    return double


def _by_aot_compile(t):
    _compiled("aot_eager")(t)


def _by_held_method(t):
    plain_add_(t, 1.0)


def _by_held_op(t):
    plain_mul_(t, torch.tensor(2.0))


def _by_base_method(t):
    plain_zero_(t)


def _by_fx(t):
    def body(t):
        return t.mul_(2.0)

    traced = torch.fx.symbolic_trace(body)
    traced(t)


UNSEEN = [
    _by_aot_compile,
    _by_held_method,
    _by_held_op,
    _by_base_method,
]


def values():
    return torch.full((4,), 2.0)


def _unknown(error):
    conflict = error.conflict
    assert conflict.rule == "GM110"
    assert conflict.kind == "error"
    assert conflict.saved.op == "mul"
    assert conflict.backward.file == __file__
    return conflict


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
@pytest.mark.parametrize("write", UNSEEN)
def test_inside_the_context(write, context):
    t = values()
    with context(), pytest.raises(gradmend.ConflictError) as caught:
        loss = saved_by_mul(t)
        write(t)
        loss.backward()
    _unknown(caught.value)


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
@pytest.mark.parametrize("write", [*UNSEEN, lambda t: t.add_(1), lambda t: t.__setitem__(0, 5.0), _by_fx])
def test_after_the_context(write, context):
    t = values()
    with context():
        loss = saved_by_mul(t)
    write(t)
    with pytest.raises(gradmend.ConflictError) as caught:
        loss.backward()
    _unknown(caught.value)


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.data.mul_(2.0),
        lambda t: t.numpy().__setitem__(0, 9.0),
        lambda t: t.untyped_storage().fill_(1),
        lambda t: torch._fused_sgd_(
            [t],
            [torch.ones(4)],
            [],
            weight_decay=0.0,
            momentum=0.0,
            lr=0.1,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        ),
    ],
    ids=["data", "numpy", "storage", "fused"],
)
def test_a_quiet_write_after_the_context(write, context):
    """No counter steps, and no tap is on: the fingerprint taken when the context was left tells."""
    t = values()
    with context():
        loss = saved_by_mul(t)
    write(t)
    with pytest.raises(gradmend.ConflictError) as caught:
        loss.backward()
    assert caught.value.conflict.kind == "silent"


def test_an_eager_backend_calls_our_taps():
    """Dynamo's "eager" backend runs its graph by the methods' names, so that Write is seen, and healed."""
    t = values()
    with gradmend.heal() as session:
        w = torch.ones((), requires_grad=True)
        loss = (w * t).sum()
        _compiled("eager")(t)
        loss.backward()
    assert w.grad == 8 and session.outcome == "healed"


def test_an_unseen_write_among_seen_ones():
    """Credit for a tapped step must not cover an untapped one."""
    t = values()
    with gradmend.heal(), pytest.raises(gradmend.ConflictError) as caught:
        loss = saved_by_mul(t)
        t.add_(1)
        plain_add_(t, 1.0)
        t.add_(1)
        loss.backward()
    _unknown(caught.value)


def test_a_seen_write_then_the_context_is_left_then_an_unseen_one():
    t = values()
    with gradmend.heal():
        loss = saved_by_mul(t)
        t.add_(1)
    plain_add_(t, 1.0)
    with pytest.raises(gradmend.ConflictError) as caught:
        loss.backward()
    _unknown(caught.value)


def test_a_write_from_inside_a_tapped_call_is_credited_once():
    """map_ with a callback that writes to another saved tensor by an untapped name."""
    a, b = values().double(), values().double()
    with gradmend.heal():
        first, second = saved_by_mul(a), saved_by_mul(b)

        def callback(x, y):
            plain_add_(b, 1.0)
            return x + y

        a.map_(torch.ones(4, dtype=torch.float64), callback)
        first.backward()
        with pytest.raises(gradmend.ConflictError):
            second.backward()


def test_accumulate_grad_on_a_saved_grad():
    """AccumulateGrad adds in C++ to a `.grad` that another graph has kept."""
    x = torch.full((3,), 2.0, requires_grad=True)
    (x * x).sum().backward()
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        penalty = saved_by_mul(x.grad)
        (x * 3).sum().backward()
        penalty.backward()
    _unknown(caught.value)


def test_accumulate_grad_after_the_context():
    x = torch.full((3,), 2.0, requires_grad=True)
    (x * x).sum().backward()
    with gradmend.heal():
        penalty = saved_by_mul(x.grad)
    (x * 3).sum().backward()
    with pytest.raises(gradmend.ConflictError) as caught:
        penalty.backward()
    _unknown(caught.value)


def test_a_compiled_step_with_inductor():
    t = values()
    double = _compiled("inductor")
    try:
        double(values())
    except Exception as error:
        if "compiler" in str(error).lower() or "CppCompile" in type(error).__name__:
            pytest.skip("no C++ compiler here")
        raise
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        loss = saved_by_mul(t)
        double(t)
        loss.backward()
    _unknown(caught.value)


def test_another_thread_writes_by_a_held_name():
    import threading

    t = values()
    with gradmend.watch(), pytest.raises(gradmend.ConflictError):
        loss = saved_by_mul(t)
        worker = threading.Thread(target=plain_add_, args=(t, 1.0))
        worker.start()
        worker.join()
        loss.backward()


def test_unread_values_may_change_unseen():
    """Train-mode BatchNorm keeps its running statistics and does not read them."""
    bn = torch.nn.BatchNorm1d(3)
    with gradmend.watch() as session:
        loss = bn(torch.randn(4, 3, requires_grad=True)).sum()
        plain_zero_(bn.running_mean)
        loss.backward()
    assert [c.kind for c in session.conflicts] == ["refused-but-right"]
