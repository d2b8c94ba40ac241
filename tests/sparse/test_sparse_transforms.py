"""torch.func, forward mode, compile, autocast: the same numbers as dense, or a clear refusal."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from gradmend.sparse import Pattern, SparseError, SparseTensor, dynamo
from gradmend.sparse.nn import SparseLinear

P = Pattern([[0, 0, 1, 2, 3, 3], [1, 3, 0, 2, 0, 3]], (4, 4))
G = torch.Generator().manual_seed(0)
V = torch.randn(6, dtype=torch.float64, generator=G)
X = torch.randn(4, 3, dtype=torch.float64, generator=G)
Q = torch.randn(4, 4, dtype=torch.float64, generator=G)


def dense(v: Tensor) -> Tensor:
    return v.new_zeros(4, 4).index_put(tuple(P.indices()), v)


def sparse(v: Tensor) -> SparseTensor:
    return SparseTensor(P, v)


LOSSES: dict[str, Callable[[Any, Any], Tensor]] = {
    "S @ X": lambda S, X: (S @ X).pow(3).sum(),
    "X.t() @ S": lambda S, X: (X.t() @ S).sin().sum(),
    "S.sum(0)": lambda S, X: (S.sum(0) ** 3).sum(),
    "S.amax(1)": lambda S, X: (S.amax(1) ** 3).sum(),
    "S.logsumexp(1)": lambda S, X: S.logsumexp(1).sin().sum(),
    "S * X": lambda S, X: ((S * X[:, :1]).sum(1) ** 2).sum(),
    "S.norm": lambda S, X: S.norm(),
    "S.max(0)": lambda S, X: (S.max(0)[0] ** 2).sum(),
    "S.t()": lambda S, X: ((S.t() @ X) ** 2).sum(),
    "S[1:]": lambda S, X: (S[1:] @ X).pow(2).sum(),
    "cat": lambda S, X: (torch.cat([S, S * 2]) @ X).pow(3).sum(),
    "S @ S": lambda S, X: ((S @ S) @ X).pow(2).sum(),
    "solve": lambda S, X: (torch.linalg.solve_triangular(S + 2 * EYE(S), X, upper=True)).pow(2).sum(),
    # Not S.to_dense() of a dense tensor: inside torch.func that fails or is wrong (2.15).
    "to_dense": lambda S, X: (S if isinstance(S, Tensor) else S.to_dense()).pow(3).sum(),
}


def EYE(S: Any) -> Any:
    if isinstance(S, SparseTensor):
        return SparseTensor(Pattern([[0, 1, 2, 3]] * 2, (4, 4)), torch.ones(4, dtype=torch.float64))
    return torch.eye(4, dtype=torch.float64)


losses = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def both(loss: Any, transform: Callable[[Any], Any]) -> None:
    torch.testing.assert_close(
        transform(lambda v, X: loss(sparse(v), X)), transform(lambda v, X: loss(dense(v), X))
    )


@losses
def test_func_grad_and_hessian(loss: Any) -> None:
    both(loss, lambda f: grad(f, argnums=(0, 1))(V, X))
    both(loss, lambda f: hessian(f, argnums=(0, 1))(V, X))
    both(loss, lambda f: jacrev(jacrev(f, argnums=1))(V, X))


@pytest.mark.parametrize("name", [n for n in LOSSES if n != "solve"])
def test_every_order_of_nesting(name: str) -> None:
    # The jvp of an autograd.Function drops the outer derivative on torch 2.13: products must not use one.
    for outer in (jacfwd, jacrev):
        both(LOSSES[name], lambda f, outer=outer: outer(jacfwd(f, argnums=(0, 1)), argnums=(0, 1))(V, X))


@pytest.mark.parametrize("outer", [jacfwd, jacrev])
def test_a_solve_refuses_the_nesting_that_torch_gets_wrong(outer: Any) -> None:
    with pytest.raises(SparseError, match="take the inner one in reverse mode"):
        outer(jacfwd(lambda v: LOSSES["solve"](sparse(v), X)))(V)


@losses
def test_vmap_over_values_operands_and_both(loss: Any) -> None:
    vs = torch.stack([V, V * 2, V.flip(0)])
    Xs = torch.stack([X, X + 1, X * X])
    for dims in ((0, None), (None, 0), (0, 0)):
        args = (vs if dims[0] == 0 else V, Xs if dims[1] == 0 else X)
        both(loss, lambda f, args=args, dims=dims: vmap(f, in_dims=dims)(*args))
        both(loss, lambda f, args=args, dims=dims: vmap(grad(f, argnums=(0, 1)), in_dims=dims)(*args))


@losses
def test_forward_mode_and_vjp(loss: Any) -> None:
    both(loss, lambda f: jvp(f, (V, X), (V.cos(), X.sin())))
    both(loss, lambda f: vjp(f, V, X)[1](torch.tensor(2.0, dtype=torch.float64)))


def test_a_sparse_tensor_is_a_tree() -> None:
    g = grad(lambda S: (S @ X).pow(2).sum())(sparse(V))
    assert isinstance(g, SparseTensor) and g.pattern is P
    want = grad(lambda v: (dense(v) @ X).pow(2).sum())(V)
    torch.testing.assert_close(g.values(), want)


def test_functional_call_on_a_module() -> None:
    layer = SparseLinear(5, 4, 0.5).double()
    x = torch.randn(3, 5, dtype=torch.float64)
    params = dict(layer.named_parameters())
    per_sample = vmap(grad(lambda p, x: functional_call(layer, p, (x,)).pow(2).sum()), (None, 0))(params, x)
    total = grad(lambda p: functional_call(layer, p, (x,)).pow(2).sum())(params)
    for name in params:
        torch.testing.assert_close(per_sample[name].sum(0), total[name])


# torch.compile

COMPILED: dict[str, Callable[[Any, Any], Any]] = {
    "S @ X": operator.matmul,
    "X @ S": lambda S, X: X @ S,
    "S - X": operator.sub,
    "X - S": lambda S, X: X - S,
    "S / X": operator.truediv,
    "S * X": operator.mul,
    "S + X": operator.add,
    "S ** 2": lambda S, X: S**2,
    "S % 3": lambda S, X: S % 3,
    "S > 0": lambda S, X: (S > 0).double(),
    "torch.sum": lambda S, X: torch.sum(S, 0),
    "S.sum(1)": lambda S, X: S.sum(1),
    "mean": lambda S, X: S.mean(),
    "amax": lambda S, X: S.amax(1),
    "norm": lambda S, X: torch.linalg.norm(S),
    "relu": lambda S, X: torch.relu(S),
    "gelu": lambda S, X: F.gelu(S),
    "linear": lambda S, X: F.linear(X, S),
    "torch.mm": lambda S, X: torch.mm(S, X),
    "torch.sparse.mm": lambda S, X: torch.sparse.mm(S, X),
    "torch.sparse.softmax": lambda S, X: torch.sparse.softmax(S, 1) @ X,
    "torch.sparse.sum": lambda S, X: torch.sparse.sum(S, 0),
    "torch.sparse.addmm": lambda S, X: torch.sparse.addmm(X, S, X),
    "torch.sparse.sampled_addmm": lambda S, X: torch.sparse.sampled_addmm(S, X, X).values(),
    "t": lambda S, X: S.t() @ X,
    "softmax": lambda S, X: S.softmax(1) @ X,
    "map": lambda S, X: S.map(torch.sin) if isinstance(S, SparseTensor) else S.sin(),
    "logsumexp": lambda S, X: S.logsumexp(1),
    "to_dense": lambda S, X: S.to_dense(),
    "mul S": lambda S, X: S * S,
    "chain": lambda S, X: torch.relu((S * 2) @ X) @ S,
}


def _as_dense(out: Any) -> Tensor:
    return out.to_dense() if isinstance(out, SparseTensor) else out


@pytest.mark.parametrize("name", COMPILED)
def test_compile_fullgraph(name: str) -> None:
    torch._dynamo.reset()
    f = COMPILED[name]
    v1, v2 = (V.clone().requires_grad_() for _ in range(2))
    x1, x2 = ((Q + 3).clone().requires_grad_() for _ in range(2))
    fresh = Pattern(P.indices(), P.size)
    # Square and asymmetric, so that swapped operands can't go unseen.
    got = _as_dense(torch.compile(f, fullgraph=True, backend="aot_eager")(SparseTensor(fresh, v1), x1))
    if name == "torch.sparse.sum":
        want = dense(v2).sum(0)
    elif name == "torch.sparse.sampled_addmm":
        want = (dense(v2) + x2 @ x2)[tuple(P.canonical().indices())]
    elif "softmax" in name:
        hidden = dense(v2).masked_fill(dense(torch.ones_like(V)) == 0, -torch.inf)
        want = torch.softmax(hidden, 1) @ x2
    else:
        want = f(dense(v2), x2)
    torch.testing.assert_close(got, want)
    if not got.requires_grad:
        return
    weight = torch.randn(got.shape, dtype=got.dtype, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad((got * weight).sum(), [v1, x1], allow_unused=True)
    theirs = torch.autograd.grad((want * weight).sum(), [v2, x2], allow_unused=True)
    for g, h in zip(ours, theirs, strict=True):
        assert (g is None) == (h is None) or h.count_nonzero() == 0
        if g is not None:
            torch.testing.assert_close(g, h)


def test_compiled_code_follows_the_pattern() -> None:
    torch._dynamo.reset()
    f = torch.compile(lambda S, X: (S @ X).relu() + S.sum(1)[:, None], fullgraph=True, backend="aot_eager")
    for nnz in (6, 6, 9, 6):
        p = Pattern.random((4, 4), nnz=nnz)
        S = SparseTensor(p, torch.randn(nnz, dtype=torch.float64))
        torch.testing.assert_close(f(S, Q), (S.to_dense() @ Q).relu() + S.to_dense().sum(1)[:, None])


def test_compiled_func_grad() -> None:
    torch._dynamo.reset()
    f = grad(lambda v, X: (sparse(v) @ X).pow(3).sum(), argnums=(0, 1))
    g = grad(lambda v, X: (dense(v) @ X).pow(3).sum(), argnums=(0, 1))
    torch.testing.assert_close(torch.compile(f, fullgraph=True, backend="aot_eager")(V, X), g(V, X))


def test_new_patterns_break_the_graph_and_nothing_else() -> None:
    torch._dynamo.reset()
    for f in (lambda S, X: S[1:] @ X, lambda S, X: torch.cat([S, S]) @ X):
        got = torch.compile(f, backend="aot_eager")(sparse(V), X)
        torch.testing.assert_close(got, f(dense(V), X))


@pytest.mark.slow  # C++ is compiled
def test_compile_with_inductor() -> None:
    torch._dynamo.reset()
    layer = SparseLinear(6, 5, 0.5)
    x = torch.randn(4, 6, requires_grad=True)
    want = layer(x).relu().sum()
    got = torch.compile(lambda x: layer(x).relu().sum(), fullgraph=True)(x)
    torch.testing.assert_close(got, want)
    for g, h in zip(
        torch.autograd.grad(got, [x, *layer.parameters()]),
        torch.autograd.grad(want, [x, *layer.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(g, h)


def test_compile_refuses_where_the_operands_may_be_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(dynamo, "mended", False)
    with pytest.raises(Exception, match="operands swapped"):
        torch.compile(lambda S, X: S @ X, fullgraph=True, backend="eager")(sparse(V), Q)
    torch._dynamo.reset()


def test_the_map_is_mended_when_dynamo_loads() -> None:
    import subprocess
    import sys

    code = (
        "import sys, torch, gradmend.sparse.dynamo as d, gradmend.sparse\n"
        "assert 'torch._dynamo.variables.builtin' not in sys.modules and not d.mended\n"
        "import torch._dynamo\n"
        "assert d.mended\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    v, x = V.float().requires_grad_(), X.float().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        out = sparse(v) @ x
        assert out.dtype == dtype
        assert F.linear(x.t(), sparse(v)).dtype == dtype
        assert (x.t() @ sparse(v)).dtype == dtype
    out.sum().backward()
    assert v.grad.dtype == torch.float32 and x.grad.dtype == torch.float32
    torch.testing.assert_close(
        v.grad, (torch.ones(4, 3) @ x.detach().t())[tuple(P.indices())], rtol=0.02, atol=0.02
    )
