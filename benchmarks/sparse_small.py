"""Two sparse operands, and what a call costs when there is next to nothing to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sparse_peers import Step, peer
from sparse_problems import Problem
from torch import Tensor

# Sparse @ sparse


@peer("gradmend", "spsp", "spsp_forward")
def ours_spsp(p: Problem) -> Step:
    from gradmend.sparse import Pattern, SparseTensor

    a, b = Pattern(p.index, p.size).prepare(), Pattern(p.extra["other"], p.size).prepare()
    return _spsp(p, lambda v, w: (SparseTensor(a, v) @ SparseTensor(b, w)).values())


@peer("gradmend, new patterns", "spsp_forward")
def ours_spsp_first(p: Problem) -> Step:
    from gradmend.sparse import Pattern, SparseTensor

    a, b = Pattern(p.index, p.size).prepare(), Pattern(p.extra["other"], p.size).prepare()

    def forward(v: Tensor, w: Tensor) -> Tensor:
        a._product = None
        return (SparseTensor(a, v) @ SparseTensor(b, w)).values()

    return _spsp(p, forward)


@peer("torch COO", "spsp", "spsp_forward")
def torch_spsp(p: Problem) -> Step:
    def forward(v: Tensor, w: Tensor) -> Tensor:
        A = torch.sparse_coo_tensor(p.index, v, p.size, is_coalesced=True)
        B = torch.sparse_coo_tensor(p.extra["other"], w, p.size, is_coalesced=True)
        return torch.sparse.mm(A, B).coalesce().values()

    return _spsp(p, forward)


@peer("torch CSR", "spsp_forward")
def torch_csr_spsp(p: Problem) -> Step:
    other = p.extra["other"]
    crow = torch._convert_indices_from_coo_to_csr(other[0], p.cols)
    A = torch.sparse_csr_tensor(p.crow, p.col, p.values, p.size)
    B = torch.sparse_csr_tensor(crow, other[1], p.extra["values"], p.size)
    return lambda: ((A @ B).values(),)


@peer("scipy, sorted", "spsp_forward")
def scipy_spsp(p: Problem) -> Step:
    from scipy.sparse import coo_matrix

    A, B = (
        coo_matrix((v.numpy(), (i[0].numpy(), i[1].numpy())), shape=p.size).tocsr()
        for i, v in ((p.index, p.values), (p.extra["other"], p.extra["values"]))
    )

    def step() -> tuple[Any, ...]:
        C = A @ B
        C.sort_indices()
        return (torch.from_numpy(C.data),)

    return step


def _spsp(p: Problem, forward: Callable[[Tensor, Tensor], Tensor]) -> Step:
    if p.kind == "spsp_forward":
        return lambda: (forward(p.values, p.extra["values"]),)
    v, w = p.values.clone().requires_grad_(), p.extra["values"].clone().requires_grad_()

    def step() -> tuple[Any, ...]:
        v.grad = w.grad = None
        out = forward(v, w)
        out.backward(torch.ones_like(out))
        return out.detach(), v.grad, w.grad

    return step


# Small ones: what a call costs

_TINY: dict[str, Callable[[Any], Any]] = {
    "tiny_softmax": lambda S: torch.sparse.softmax(S, 1),
    "tiny_sum": lambda S: torch.sparse.sum(S, 0),
    "tiny_dense": lambda S: S.to_dense(),
    "tiny_sparse": lambda S: S @ S,
}


@peer("gradmend", *_TINY)
def ours_small(p: Problem) -> Step:
    from gradmend.sparse import Pattern, SparseTensor

    S, do = SparseTensor(Pattern(p.index, p.size).prepare(), p.values), _TINY[p.kind]

    def step() -> tuple[Any, ...]:
        do(S)
        return ()

    return step


@peer("torch COO", *_TINY)
def torch_small(p: Problem) -> Step:
    A, do = torch.sparse_coo_tensor(p.index, p.values, p.size, is_coalesced=True), _TINY[p.kind]

    def step() -> tuple[Any, ...]:
        do(A)
        return ()

    return step


# Two operands entry by entry, rows, and joining: what torch's COO is good at

_PAIRS: dict[str, Callable[[Any, Any, Tensor], Any]] = {
    "plus": lambda A, B, rows: A + B,
    "times": lambda A, B, rows: A * B,
    "rows": lambda A, B, rows: torch.index_select(A, 0, rows),
    "cat": lambda A, B, rows: torch.cat([A, B]),
}


def _our_pair(p: Problem, known: bool) -> Step:
    from gradmend.sparse import Pattern, SparseTensor

    S, T = (
        SparseTensor(Pattern(i, p.size).prepare(), v)
        for i, v in ((p.index, p.values), (p.extra["other"], p.extra["values"]))
    )

    def step() -> tuple[Any, ...]:
        if not known:
            S.pattern._merged.clear()
        return (_PAIRS[p.kind](S, T, p.extra["rows"]).values(),)

    return step


@peer("gradmend", *_PAIRS)
def ours_pair(p: Problem) -> Step:
    return _our_pair(p, known=False)


@peer("gradmend, the same patterns again", "plus", "times")
def ours_pair_again(p: Problem) -> Step:
    return _our_pair(p, known=True)


@peer("torch COO", *_PAIRS)
def torch_pair(p: Problem) -> Step:
    A, B = (
        torch.sparse_coo_tensor(i, v, p.size, is_coalesced=True)
        for i, v in ((p.index, p.values), (p.extra["other"], p.extra["values"]))
    )
    return lambda: (_PAIRS[p.kind](A, B, p.extra["rows"]).coalesce().values(),)
