"""nn.Linear with a sparse weight."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradmend.sparse.errors import PatternError
from gradmend.sparse.nn.weight import SparseWeight
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor


class SparseLinear(nn.Module):
    """y = x W^T + b with a sparse W of a fixed pattern, random at `density` unless given."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        density: float = 0.1,
        *,
        pattern: Pattern | None = None,
        bias: bool = True,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if pattern is None:
            pattern = Pattern.random((out_features, in_features), density=density, generator=generator)
        if pattern.size != (out_features, in_features):
            raise PatternError(
                f"the pattern is {pattern.size}; a weight is (out, in) = {(out_features, in_features)}."
            )
        self.in_features, self.out_features = in_features, out_features
        if device is not None:
            pattern = pattern.to(device)
        pattern = pattern.canonical()
        # nn.Linear's own bound, with the inputs a row really has.
        bound = 1 / math.sqrt(max(pattern.nnz / max(out_features, 1), 1.0))
        values = torch.empty(pattern.nnz, device=device, dtype=dtype)
        values.uniform_(-bound, bound, generator=generator)
        self.weight = SparseWeight(pattern, values)
        if bias:
            start = torch.empty(out_features, device=device, dtype=dtype)
            self.bias: nn.Parameter | None = nn.Parameter(start.uniform_(-bound, bound, generator=generator))
        else:
            self.register_parameter("bias", None)

    @classmethod
    def from_dense(cls, layer: nn.Linear, mask: Tensor | None = None) -> SparseLinear:
        """A pruned layer: its non-zero weights, or those of a mask."""
        W: SparseTensor = SparseTensor.from_dense(layer.weight.detach(), mask)
        made = cls(layer.in_features, layer.out_features, pattern=W.pattern, bias=layer.bias is not None)
        made.to(device=layer.weight.device, dtype=layer.weight.dtype)
        with torch.no_grad():
            made.weight.values.copy_(W.values())
            if made.bias is not None:
                made.bias.copy_(layer.bias)
        return made

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.linear(x, self.weight(), self.bias)
        return out

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )
