"""Attention along a pattern: scores are computed at its places only, never as a dense matrix."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradmend.sparse.errors import PatternError, SparseError
from gradmend.sparse.nn.graph import adjacency
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor, make


def sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, *, scale: float | None = None, dropout: float = 0.0
) -> Tensor:
    """softmax(q k^T * scale) v with the softmax over each row's places. q [..., n, d], k and v [..., m, d].

    A row without places gives zeros.
    """
    from gradmend.sparse import sddmm

    if pattern.ndim != 2 or pattern.size != (q.shape[-2], k.shape[-2]):
        raise PatternError(
            f"the pattern is {pattern.size}, and {q.shape[-2]} queries meet {k.shape[-2]} keys."
        )
    if v.shape[-2] != k.shape[-2]:
        raise SparseError(f"there are {k.shape[-2]} keys and {v.shape[-2]} values.")
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    scores: SparseTensor = sddmm(pattern, q * factor, k.mT)
    weights: SparseTensor = scores.softmax(-1)
    if dropout:
        weights = weights.map(F.dropout, dropout)
    out: Tensor = weights @ v
    return out


class SparseAttention(nn.Module):
    """nn.MultiheadAttention(batch_first=True) along a pattern of (queries, keys): same parameters, same numbers.

    >>> from gradmend.sparse import band
    >>> SparseAttention(16, 4)(torch.ones(2, 10, 16), pattern=band(10, 2, 2)).shape
    torch.Size([2, 10, 16])
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, **factory: Any
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise SparseError(f"{num_heads} heads don't divide {embed_dim} features.")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        # The names and shapes of nn.MultiheadAttention: states go from one to the other.
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim, **factory))
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **factory)
        if bias:
            self.in_proj_bias: nn.Parameter | None = nn.Parameter(torch.zeros(3 * embed_dim, **factory))
            nn.init.zeros_(self.out_proj.bias)
        else:
            self.register_parameter("in_proj_bias", None)

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, *, pattern: Pattern
    ) -> Tensor:
        """query [..., n, embed_dim]; key and value are the query and the key unless given."""
        key = query if key is None else key
        value = key if value is None else value
        weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(x, w, b).unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        out = sparse_attention(q, k, v, pattern, dropout=self.dropout if self.training else 0.0)
        made: Tensor = self.out_proj(out.transpose(-2, -3).flatten(-2))
        return made

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, dropout={self.dropout}"


class GraphAttention(nn.Module):
    """Graph attention (GAT): each node weighs its neighbours by a learnt score, and sums them; heads are batches.

    e = leaky_relu(a_target . h_i + a_source . h_j) for each place (i, j) of the adjacency, softmax over j.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        heads: int = 1,
        *,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if heads < 1:
            raise SparseError(f"attention has at least one head, not {heads}.")
        self.heads, self.out_features, self.concat = heads, out_features, concat
        self.negative_slope, self.dropout = negative_slope, dropout
        self.lin = nn.Linear(in_features, heads * out_features, bias=False)
        self.source = nn.Parameter(torch.empty(heads, out_features))
        self.target = nn.Parameter(torch.empty(heads, out_features))
        for p in (self.lin.weight, self.source, self.target):
            nn.init.xavier_uniform_(p)
        self.bias = (
            nn.Parameter(torch.zeros(heads * out_features if concat else out_features)) if bias else None
        )

    def forward(self, A: SparseTensor | Pattern, x: Tensor) -> Tensor:
        """x [nodes, in] -> [nodes, heads * out], or the mean of the heads. Row i of the adjacency A has what i looks at.

        Values of the adjacency, if it has some, are added to the scores before the softmax.
        """
        weighted = A if isinstance(A, Pattern) else adjacency("GraphAttention", A)
        pattern = weighted.canonical() if isinstance(weighted, Pattern) else weighted._pattern
        if pattern.ndim != 2 or pattern.size[1] != x.shape[0] or pattern.size[0] != x.shape[0]:
            raise PatternError(f"the adjacency is {pattern.size}, and there are {x.shape[0]} nodes.")
        h = self.lin(x).view(-1, self.heads, self.out_features).transpose(0, 1)  # [heads, nodes, out]
        left, right = (h @ self.target[:, :, None]).squeeze(2), (h @ self.source[:, :, None]).squeeze(2)
        score = left.index_select(1, pattern._row) + right.index_select(1, pattern._col)
        score = F.leaky_relu(score, self.negative_slope)
        if isinstance(weighted, SparseTensor):
            score = score + weighted._values
        weights: SparseTensor = make(pattern, score, 1).softmax(-1)
        if self.dropout and self.training:
            weights = weights.map(F.dropout, self.dropout)
        out: Tensor = weights @ h
        out = out.transpose(0, 1).flatten(1) if self.concat else out.mean(0)
        return out if self.bias is None else out + self.bias
