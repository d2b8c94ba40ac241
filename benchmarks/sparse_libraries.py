"""The peers beyond PyTorch itself: those that install, and why the others do not take part."""

from __future__ import annotations

from typing import Any

import torch
from sparse_peers import Step, _backward, _values_step, peer
from sparse_problems import Problem
from torch import Tensor


@peer("PyG scatter", "product")
def pyg_scatter(p: Problem) -> Step:
    from torch_geometric.utils import scatter

    def forward(v: Tensor, X: Tensor) -> Tensor:
        return scatter(v[:, None] * X[p.col], p.index[0], dim=0, dim_size=p.rows, reduce="sum")

    return _backward(forward, p)


@peer("PyG scatter", "sum")
def pyg_sum(p: Problem) -> Step:
    from torch_geometric.utils import scatter

    return _values_step(p, lambda v: scatter(v, p.col, dim=0, dim_size=p.cols, reduce="sum"))


@peer("PyG softmax", "softmax")
def pyg_softmax(p: Problem) -> Step:
    from torch_geometric.utils import softmax

    return _values_step(p, lambda v: softmax(v, p.index[0], num_nodes=p.rows))


@peer("PyG softmax, CSR", "softmax")
def pyg_softmax_csr(p: Problem) -> Step:
    from torch_geometric.utils import softmax

    return _values_step(p, lambda v: softmax(v, ptr=p.crow))


@peer("PyG EdgeIndex", "product")
def pyg_edge_index(p: Problem) -> Step:
    from torch_geometric import EdgeIndex

    edges = EdgeIndex(p.index, sparse_size=p.size, sort_order="row")
    edges.fill_cache_()
    return _backward(lambda v, X: edges.matmul(X, input_value=v), p)


@peer("torchsparsegradutils", "product", "tiny_step")
def tsgu(p: Problem) -> Step:
    from torchsparsegradutils import sparse_mm

    A = torch.sparse_coo_tensor(p.index, p.values, p.size, is_coalesced=True).requires_grad_()
    return _backward(sparse_mm, p, A)


@peer("sparseprop", "linear")
def sparseprop(p: Problem) -> Step:
    from sparseprop.modules import SparseLinear

    layer, X = SparseLinear(p.mask()), p.X.clone().requires_grad_()

    def step() -> tuple[Any, ...]:
        layer.W_val.grad = X.grad = None
        out = layer(X)
        out.backward(p.G)
        return out.detach(), layer.W_val.grad, X.grad

    return step


@peer("sparselab", "linear")
def sparselab(p: Problem) -> Step:
    from sparselab import SparseLinear

    layer = SparseLinear(p.cols, p.rows, bias=False, sparsity=1 - p.nnz / (p.rows * p.cols))
    X = p.X.clone().requires_grad_()

    def step() -> tuple[Any, ...]:  # a pattern of its own: as many entries, so only the time compares
        layer.zero_grad()
        X.grad = None
        layer(X).backward(p.G)
        return ()

    return step


@peer("scipy", "product")
def scipy(p: Problem) -> Step:
    import numpy as np
    from scipy.sparse import csr_matrix

    A = csr_matrix((p.values.numpy(), p.col.numpy(), p.crow.numpy()), shape=p.size)
    T = A.T.tocsr()
    X, G, row, col = p.X.numpy(), p.G.numpy(), p.index[0].numpy(), p.col.numpy()

    def step() -> tuple[Any, ...]:
        out, d_X = A @ X, T @ G
        d_values = np.empty(p.nnz, np.float32)
        for i in range(0, p.nnz, 1 << 18):
            at = slice(i, i + (1 << 18))
            d_values[at] = np.einsum("ek,ek->e", G[row[at]], X[col[at]])
        return torch.from_numpy(out), torch.from_numpy(d_values), torch.from_numpy(d_X)

    return step


@peer("JAX BCOO", "product")
def jax_bcoo(p: Problem) -> Step:
    import jax
    import jax.numpy as jnp
    from jax.experimental import sparse

    index = jnp.asarray(p.index.t().numpy().astype("int32"))
    v, X, G = (jnp.asarray(t.numpy()) for t in (p.values, p.X, p.G))

    @jax.jit
    def both(index: Any, v: Any, X: Any, G: Any) -> Any:
        def f(v: Any, X: Any) -> Any:
            A = sparse.BCOO((v, index), shape=p.size, indices_sorted=True, unique_indices=True)
            return A @ X

        out, pull = jax.vjp(f, v, X)
        return (out, *pull(G))

    def step() -> tuple[Any, ...]:
        found = jax.block_until_ready(both(index, v, X, G))
        return tuple(torch.from_dlpack(t) for t in found)

    return step
