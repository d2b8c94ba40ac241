"""torch.func, checkpoint, other people's hooks, autocast, subclasses, custom Functions: right, or a clear stop."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradmend

CONTEXTS = [gradmend.watch, gradmend.heal]
pytestmark = pytest.mark.parametrize("context", CONTEXTS)


def cubed(x):
    y = x * x
    y = y * x
    y += 0
    return y.sum()


def test_func_grad(context):
    x = torch.tensor([1.0, 2.0])
    with context():
        assert torch.equal(torch.func.grad(cubed)(x), 3 * x * x)
        value, aux = torch.func.grad_and_value(cubed)(x)[::-1]
        assert value == cubed(x) and torch.equal(aux, 3 * x * x)
        # After it, ours are on again.
        y = torch.ones(3, requires_grad=True).exp()
        z = (y * y).sum()
        y.zero_()
        if context is gradmend.watch:
            with pytest.raises(gradmend.ConflictError):
                z.backward()
        else:
            z.backward()


def test_nested_and_vectorised_func(context):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with context():
        assert torch.equal(torch.func.vmap(torch.func.grad(cubed))(x), 3 * x * x)
        assert torch.equal(torch.func.hessian(cubed)(x[0]), torch.diag(6 * x[0]))
        assert torch.equal(torch.func.jacrev(lambda t: t * t)(x[0]), torch.diag(2 * x[0]))
        assert torch.equal(torch.func.jacfwd(lambda t: t * t)(x[0]), torch.diag(2 * x[0]))
        _, pull = torch.func.vjp(cubed, x[0])
        assert torch.equal(pull(torch.tensor(1.0))[0], 3 * x[0] * x[0])
        _, tangent = torch.func.jvp(cubed, (x[0],), (torch.ones(2),))
        assert tangent == (3 * x[0] * x[0]).sum()


def test_in_place_under_vmap(context):
    def body(t):
        t = t.clone()
        t.mul_(2)
        t[0] = 7
        return t

    x = torch.ones(3, 2)
    with context():
        assert torch.equal(torch.func.vmap(body)(x), torch.tensor([[7.0, 2.0]] * 3))


def test_functional_call_and_ensembles(context):
    model = nn.Linear(2, 1)
    params = dict(model.named_parameters())
    x = torch.ones(1, 2)
    with context():
        out = torch.func.functional_call(model, {k: v * 2 for k, v in params.items()}, (x,))
        out.sum().backward()
        assert torch.equal(model.weight.grad, 2 * x)
        grads = torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).sum())(params)
        assert torch.equal(grads["weight"], x)


def test_func_that_raises_puts_our_hooks_back(context):
    def bad(t):
        raise ZeroDivisionError

    with context():
        with pytest.raises(ZeroDivisionError):
            torch.func.grad(bad)(torch.ones(2))
        assert torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None


def test_gradcheck(context):
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    with context():
        assert torch.autograd.gradcheck(lambda t: t.exp().sin(), x)
        assert torch.autograd.gradgradcheck(lambda t: t.exp().sin(), x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(context, reentrant):
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5))

    def gradient():
        torch.manual_seed(1)
        x = torch.ones(2, 4, requires_grad=True)
        checkpoint(layer, x * 2, use_reentrant=reentrant).square().sum().backward()
        return x.grad

    plain = gradient()
    with context() as session:
        assert torch.equal(gradient(), plain)
    assert session.outcome == "clean"


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_conflict_inside_a_checkpoint(context, reentrant):
    def body(x):
        y = x.exp()
        z = y * y
        y.zero_()
        return z.sum()

    x = torch.ones(3, requires_grad=True)
    with context():
        out = checkpoint(body, x, use_reentrant=reentrant)
        if context is gradmend.watch and reentrant:
            with pytest.raises(gradmend.ConflictError):
                out.backward()
        else:
            # Not reentrant, the recomputation stops before the write: nothing is overwritten.
            out.backward()
            torch.testing.assert_close(x.grad, 2 * torch.ones(3).mul(2).exp())


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_write_to_what_a_checkpoint_reads_again(context, reentrant):
    """Plain PyTorch recomputes from the changed value in silence; healing can't know which was meant."""
    x = torch.ones(3, requires_grad=True)
    scale = torch.full((3,), 2.0)

    with context():
        out = checkpoint(lambda t: (t * scale).pow(2).sum(), x, use_reentrant=reentrant)
        scale.mul_(10)
        with pytest.raises(gradmend.ConflictError, match="checkpoint"):
            out.backward()
    assert x.grad is None


def test_save_on_cpu(context):
    """On the CPU it keeps the tensor itself, so a write reaches what it kept; PyTorch would say nothing."""
    with context() as session:
        x = torch.ones(3, requires_grad=True)
        with torch.autograd.graph.save_on_cpu():
            y = x.exp()
            z = (y * y).sum()
        y.zero_()
        if context is gradmend.heal:
            z.backward()
            torch.testing.assert_close(x.grad, 2 * torch.ones(3).mul(2).exp())
        else:
            with pytest.raises(gradmend.ConflictError):
                z.backward()
    assert {c.kind for c in session.conflicts} == {"silent"}


def test_other_hooks_that_compress(context):
    """Inner hooks that keep something else than the tensor: theirs to answer for."""
    x = torch.full((3,), 2.0, requires_grad=True)
    with context():
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.to(torch.float64) * 1, lambda t: t.to(torch.float32)
        ):
            loss = (x.exp() * 3).sum()
        loss.backward()
    torch.testing.assert_close(x.grad, 3 * torch.full((3,), 2.0).exp())


def test_hooks_around_ours(context):
    seen = []
    x = torch.full((3,), 2.0, requires_grad=True)

    def pack(t):
        seen.append(t.shape)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        with context():
            x.exp().sum().backward()
        assert len(seen) == 1
        x.exp().sum().backward()
        assert len(seen) == 2


def test_disabled_saved_tensors_hooks(context):
    with context():
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            x = torch.ones(3, requires_grad=True)
            x.exp().sum().backward()
        y = torch.ones(3, requires_grad=True).exp()
        assert type(y.grad_fn._raw_saved_result.data).__name__ == "Save"


def test_autocast(context):
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)

    def gradients():
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = layer(layer(torch.ones(2, 8))).float().square().sum()
        loss.backward()
        return [p.grad.clone() for p in layer.parameters()]

    plain = gradients()
    with context() as session:
        ours = gradients()
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    assert session.outcome == "clean"


def test_custom_function(context):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    with context():
        x = torch.ones(3, requires_grad=True)
        a = x * 3
        out = Double.apply(a).sum()
        a.zero_()
        if context is gradmend.watch:
            with pytest.raises(gradmend.ConflictError) as caught:
                out.backward()
            assert caught.value.conflict.saved.node == "DoubleBackward"
        else:
            out.backward()
            assert torch.equal(x.grad, torch.full((3,), 18.0))


def test_custom_function_with_mark_dirty(context):
    class AddOne(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.add_(1)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, grad):
            return grad

    with context() as session:
        x = torch.ones(3, requires_grad=True)
        AddOne.apply(x * 2).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0)) and session.outcome == "clean"


def test_hooks_of_tensors_modules_and_optimizers(context):
    calls = []
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda m, i, o: calls.append("forward"))
    layer.register_full_backward_hook(lambda m, i, o: calls.append("backward"))
    layer.weight.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))

    def run():
        calls.clear()
        x = torch.ones(1, 2, requires_grad=True)
        x.register_hook(lambda g: g * 2)
        layer(x * 1).sum().backward()
        return x, list(calls)

    _, plain = run()
    with context():
        x, ours = run()
    assert ours == plain and len(plain) == 3
    torch.testing.assert_close(x.grad, 2 * layer.weight.detach().sum(0, keepdim=True))


class Logged(torch.Tensor):
    """A subclass by __torch_function__."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logged.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclass_with_torch_function(context):
    def gradient():
        Logged.calls = 0
        x = torch.ones(3, requires_grad=True)
        y = (x * 2).as_subclass(Logged)
        y += 1
        y[0] = 5
        y.relu_()
        y.sum().backward()
        return x.grad, Logged.calls, type(y)

    plain = gradient()
    with context():
        ours = gradient()
    assert torch.equal(plain[0], ours[0]) and plain[1:] == ours[1:]


def test_a_conflict_on_a_subclass(context):
    with context():
        x = torch.ones(3, requires_grad=True)
        y = x.exp().as_subclass(Logged)
        z = (y * y).sum()
        y.zero_()
        if context is gradmend.watch:
            with pytest.raises(gradmend.ConflictError):
                z.backward()
        else:
            z.backward()
            torch.testing.assert_close(x.grad, 2 * torch.ones(3).mul(2).exp())


def test_subclass_with_torch_dispatch(context):
    from torch.testing._internal.two_tensor import TwoTensor

    def gradient():
        x = TwoTensor(torch.ones(3), torch.full((3,), 2.0)).requires_grad_()
        y = x * 2
        y.add_(1)
        (y * y).sum().backward()
        return x.grad.a, x.grad.b

    plain = gradient()
    with context():
        ours = gradient()
    assert torch.equal(plain[0], ours[0]) and torch.equal(plain[1], ours[1])


def test_subclass_with_torch_dispatch_beside_escaped_memory(context):
    """Once numpy holds memory, writes are matched by address: a wrapper's storage has none (torch 2.13 raises)."""
    from torch.testing._internal.two_tensor import TwoTensor

    with context():
        torch.ones(3).numpy()
        kept = torch.ones(3, requires_grad=True).exp()
        x = TwoTensor(torch.ones(3), torch.full((3,), 2.0)).requires_grad_()
        y = x * 2
        y.add_(1)
        (y * y).sum().backward()
        meta = torch.ones(3, device="meta", requires_grad=True) * 2
        meta.add_(1)
        (meta * meta).sum().backward()
        kept.sum().backward()
    assert torch.equal(x.grad.a, torch.full((3,), 12.0))


def test_dispatch_mode(context):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        names = ()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Count.names += (str(func),)
            return func(*args, **(kwargs or {}))

    with context(), Count():
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        y.add_(1)
        y.sum().backward()
    assert "aten.add_.Tensor" in Count.names
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_deepcopy_and_pickle_of_parameters(context):
    import copy
    import io

    layer = nn.Linear(2, 2)
    with context():
        loss = layer(torch.ones(1, 2)).sum()
        twin = copy.deepcopy(layer)
        buffer = io.BytesIO()
        torch.save(layer.state_dict(), buffer)
        loss.backward()
    assert torch.equal(twin.weight, layer.weight)


def test_data_parallel_style_threads(context):
    """Replicas forward in threads of their own, backward from this one."""
    model = nn.Linear(2, 2)
    with context() as session:
        parts = [torch.ones(1, 2), torch.full((1, 2), 2.0)]
        outs = [None, None]

        def run(i):
            outs[i] = model(parts[i])

        threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sum(o.sum() for o in outs).backward()
    assert torch.equal(model.weight.grad, torch.full((2, 2), 3.0))
    assert session.outcome == "clean"


def test_sparse_gradients(context):
    table = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    with context() as session:
        for _ in range(2):
            optimizer.zero_grad()
            table(torch.tensor([0, 2, 2])).square().sum().backward()
            optimizer.step()
    assert session.outcome == "clean"


def test_sparse_tensors_are_kept(context):
    with context() as session:
        s = torch.eye(3).to_sparse().requires_grad_()
        x = torch.ones(3, 2, requires_grad=True)
        torch.sparse.mm(s, x).sum().backward()
    assert torch.equal(x.grad, torch.ones(3, 2)) and session.outcome == "clean"
