"""How each library does the same work. A peer is a function from a problem to a step; a step returns
(result, gradient of the values, gradient of X), or fewer, to be compared with ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from sparse_problems import Problem
from torch import Tensor

Step = Callable[[], tuple[Any, ...]]
Peer = Callable[[Problem], Step]
PEERS: dict[str, dict[str, Peer]] = {}


class Skip(Exception):
    """This peer can't take part, and why."""


def peer(name: str, *kinds: str) -> Callable[[Peer], Peer]:
    def register(build: Peer) -> Peer:
        for kind in kinds:
            PEERS.setdefault(kind, {})[name] = build
        return build

    return register


def _backward(forward: Callable[[Tensor, Tensor], Tensor], p: Problem, values: Tensor | None = None) -> Step:
    """Forward and backward with fresh gradients; values may be a sparse leaf."""
    v = p.values.clone().requires_grad_() if values is None else values
    X = p.X.clone().requires_grad_()

    def step() -> tuple[Any, ...]:
        v.grad = X.grad = None
        out = forward(v, X)
        out.backward(p.G)
        return out.detach(), v.grad, X.grad

    return step


def _dense_would_be(p: Problem) -> None:
    size = 4 * p.rows * p.cols
    if size > 4e9:
        raise Skip(f"its backward asks for the dense matrix: {size / 1e9:.1f} GB")


# Ours


@peer("gradmend", "product")
def ours(p: Problem) -> Step:
    from gradmend.sparse import Pattern, SparseTensor

    pattern = Pattern(p.index, p.size).prepare()
    return _backward(lambda v, X: SparseTensor(pattern, v) @ X, p)


@peer("gradmend", "linear")
def ours_linear(p: Problem) -> Step:
    from gradmend.sparse import Pattern, SparseTensor

    pattern = Pattern(p.index, p.size).prepare()
    return _backward(lambda v, X: F.linear(X, SparseTensor(pattern, v)), p)


@peer("gradmend", "batched")
def ours_batched(p: Problem) -> Step:
    from gradmend.sparse import Pattern, SparseTensor

    pattern = Pattern(p.index, p.size).prepare()
    return _backward(lambda v, X: SparseTensor(pattern, v, batch_dims=1) @ X, p)


@peer("gradmend", "sddmm")
def ours_sddmm(p: Problem) -> Step:
    from gradmend.sparse import Pattern, sddmm

    pattern = Pattern(p.index, p.size).prepare()
    return _backward(lambda Q, K: sddmm(pattern, Q, K.mT).values(), p)


@peer("torch gather", "sddmm")
def torch_gather_heads(p: Problem) -> Step:
    return _backward(lambda Q, K: (Q.index_select(-2, p.index[0]) * K.index_select(-2, p.col)).sum(-1), p)


@peer("torch dense bmm", "sddmm")
def torch_dense_heads(p: Problem) -> Step:
    return _backward(lambda Q, K: (Q @ K.mT)[:, p.index[0], p.col], p)


@peer("torch CSR sampled_addmm", "sddmm")
def torch_sampled_heads(p: Problem) -> Step:
    mask = torch.sparse_csr_tensor(p.crow, p.col, torch.zeros(p.nnz), p.size)

    def forward(Q: Tensor, K: Tensor) -> Tensor:
        heads = [torch.sparse.sampled_addmm(mask, q, k.t(), beta=0) for q, k in zip(Q, K, strict=True)]
        return torch.stack([h.to_sparse_coo().coalesce().values() for h in heads])

    return _backward(forward, p)


def _values_step(p: Problem, forward: Callable[[Tensor], Tensor]) -> Step:
    v = p.values.clone().requires_grad_()

    def step() -> tuple[Any, ...]:
        v.grad = None
        out = forward(v)
        out.backward(p.G)
        return out.detach(), v.grad

    return step


@peer("gradmend", "sum", "softmax", "elementwise")
def ours_values(p: Problem) -> Step:
    from gradmend.sparse import Pattern, SparseTensor

    pattern = Pattern(p.index, p.size).prepare()
    do = {
        "sum": lambda S: S.sum(0),
        "softmax": lambda S: torch.softmax(S, 1).values(),
        "elementwise": lambda S: torch.tanh(S).values(),
    }[p.kind]
    return _values_step(p, lambda v: do(SparseTensor(pattern, v)))


@peer("gradmend", "tiny_forward")
def ours_tiny(p: Problem) -> Step:
    from gradmend.sparse import Pattern, SparseTensor

    S = SparseTensor(Pattern(p.index, p.size).prepare(), p.values)
    return lambda: (S @ p.X,)


@peer("gradmend", "tiny_step")
def ours_tiny_step(p: Problem) -> Step:
    return ours(p)


# PyTorch


@peer("torch COO", "product", "tiny_step")
def torch_coo(p: Problem) -> Step:
    _dense_would_be(p)
    return _backward(lambda v, X: torch.sparse_coo_tensor(p.index, v, p.size, is_coalesced=True) @ X, p)


@peer("torch CSR", "product", "tiny_step")
def torch_csr(p: Problem) -> Step:
    _dense_would_be(p)
    return _backward(lambda v, X: torch.sparse_csr_tensor(p.crow, p.col, v, p.size) @ X, p)


def _csr_leaf(p: Problem) -> Tensor:
    return torch.sparse_csr_tensor(p.crow, p.col, p.values.clone(), p.size, requires_grad=True)


@peer("torch COO leaf", "product", "tiny_step")
def torch_coo_leaf(p: Problem) -> Step:
    A = torch.sparse_coo_tensor(p.index, p.values, p.size, is_coalesced=True, requires_grad=True)
    if p.kind == "product":
        _dense_would_be(p)
    return _backward(torch.sparse.mm, p, A)


@peer("torch CSR leaf", "product", "tiny_step")
def torch_csr_leaf(p: Problem) -> Step:
    return _backward(torch.sparse.mm, p, _csr_leaf(p))


@peer("torch CSR leaf, 'sum'", "product")
def torch_csr_reduce(p: Problem) -> Step:
    return _backward(lambda A, X: torch.sparse.mm(A, X, "sum"), p, _csr_leaf(p))


@peer("torch CSR leaf", "linear")
def torch_csr_linear(p: Problem) -> Step:
    return _backward(lambda A, X: torch.sparse.mm(A, X.t()).t(), p, _csr_leaf(p))


@peer("torch CSR leaf, 'sum'", "linear")
def torch_csr_linear_reduce(p: Problem) -> Step:
    return _backward(lambda A, X: torch.sparse.mm(A, X.t().contiguous(), "sum").t(), p, _csr_leaf(p))


@peer("torch COO", "tiny_forward")
def torch_coo_forward(p: Problem) -> Step:
    A = torch.sparse_coo_tensor(p.index, p.values, p.size, is_coalesced=True)
    return lambda: (torch.sparse.mm(A, p.X),)


@peer("torch CSR", "tiny_forward")
def torch_csr_forward(p: Problem) -> Step:
    A = torch.sparse_csr_tensor(p.crow, p.col, p.values, p.size)
    return lambda: (torch.sparse.mm(A, p.X),)


@peer("embedding_bag", "product", "tiny_step")
def embedding_bag(p: Problem) -> Step:
    def forward(v: Tensor, X: Tensor) -> Tensor:
        return F.embedding_bag(p.col, X, p.crow, mode="sum", per_sample_weights=v, include_last_offset=True)

    return _backward(forward, p)


@peer("torch dense", "linear")
def torch_dense(p: Problem) -> Step:
    W, X = p.mask().requires_grad_(), p.X.clone().requires_grad_()

    def step() -> tuple[Any, ...]:
        W.grad = X.grad = None
        out = F.linear(X, W)
        out.backward(p.G)
        return out.detach(), None, X.grad

    return step


@peer("torch gather + index_add", "product", "batched")
def torch_gather(p: Problem) -> Step:
    def forward(v: Tensor, X: Tensor) -> Tensor:
        terms = v[..., None] * X.index_select(-2, p.col)
        return terms.new_zeros(*X.shape[:-2], p.rows, X.shape[-1]).index_add(X.dim() - 2, p.index[0], terms)

    return _backward(forward, p)


@peer("torch dense bmm", "batched")
def torch_bmm(p: Problem) -> Step:
    def forward(v: Tensor, X: Tensor) -> Tensor:
        return v.new_zeros(p.batch, *p.size).index_put((torch.arange(p.batch)[:, None], *p.index), v) @ X

    return _backward(forward, p)


@peer("torch CSR leaf, block diagonal", "batched")
def torch_blocks(p: Problem) -> Step:
    item = torch.arange(p.batch)[:, None]
    index = torch.stack([(p.index[d] + item * p.size[d]).flatten() for d in (0, 1)])
    crow = torch._convert_indices_from_coo_to_csr(index[0], p.batch * p.rows)
    size = (p.batch * p.rows, p.batch * p.cols)
    A = torch.sparse_csr_tensor(crow, index[1], p.values.flatten(), size, requires_grad=True)
    X, G = p.X.flatten(0, 1).clone().requires_grad_(), p.G.flatten(0, 1)

    def step() -> tuple[Any, ...]:
        A.grad = X.grad = None
        out = torch.sparse.mm(A, X, "sum")
        out.backward(G)
        return out.detach().view_as(p.G), A.grad.values().view_as(p.values), X.grad.view_as(p.X)

    return step


@peer("torch index_add", "sum")
def torch_index_add(p: Problem) -> Step:
    return _values_step(p, lambda v: v.new_zeros(p.cols).index_add(0, p.col, v))


@peer("torch.sparse.softmax", "softmax")
def torch_softmax(p: Problem) -> Step:
    def forward(v: Tensor) -> Tensor:
        A = torch.sparse_coo_tensor(p.index, v, p.size, is_coalesced=True)
        return torch.sparse.softmax(A, 1).coalesce().values()

    return _values_step(p, forward)


@peer("torch composed", "softmax")
def torch_composed(p: Problem) -> Step:
    def forward(v: Tensor) -> Tensor:
        top = v.new_zeros(p.rows).scatter_reduce(0, p.index[0], v.detach(), "amax", include_self=False)
        e = (v - top[p.index[0]]).exp()
        return e / e.new_zeros(p.rows).index_add(0, p.index[0], e)[p.index[0]]

    return _values_step(p, forward)


@peer("torch on values", "elementwise")
def torch_tanh(p: Problem) -> Step:
    return _values_step(p, torch.tanh)
