"""nn.Linear with a sparse weight."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradmend.sparse.errors import PatternError
from gradmend.sparse.nn import patterns
from gradmend.sparse.nn.weight import SparseWeight
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor


class SparseLinear(nn.Module):
    """y = x W^T + b with a sparse W of a fixed pattern, random at `density` unless given.

    >>> SparseLinear(64, 32, 0.1)(torch.ones(5, 64)).shape
    torch.Size([5, 32])

    `block=(h, w)` keeps whole blocks, `n_of_m=(2, 4)` two of every four in a row. Values start within
    1 / sqrt(entries of their row), as nn.Linear's do.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        density: float = 0.1,
        *,
        pattern: Pattern | None = None,
        block: tuple[int, int] | None = None,
        n_of_m: tuple[int, int] | None = None,
        bias: bool = True,
        generator: torch.Generator | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        size = (out_features, in_features)
        if pattern is None:
            pattern = patterns.random(size, density, block, n_of_m, generator)
        elif block is not None or n_of_m is not None:
            raise PatternError("SparseLinear takes a pattern, or block= or n_of_m= to make one.")
        if pattern.size != size:
            raise PatternError(f"the pattern is {pattern.size}; a weight is (out, in) = {size}.")
        self.in_features, self.out_features = in_features, out_features
        if device is not None:
            pattern = pattern.to(device)
        pattern = pattern.canonical()
        values = torch.empty(pattern.nnz, device=device, dtype=dtype)
        self.weight = SparseWeight(pattern, patterns.uniform(pattern, values, generator))
        if bias:
            bound = 1 / math.sqrt(max(pattern.nnz / max(out_features, 1), 1.0))
            start = torch.empty(out_features, device=device, dtype=dtype)
            self.bias: nn.Parameter | None = nn.Parameter(start.uniform_(-bound, bound, generator=generator))
        else:
            self.register_parameter("bias", None)

    @classmethod
    def from_dense(
        cls,
        layer: nn.Linear,
        mask: Tensor | Pattern | None = None,
        *,
        density: float | None = None,
        block: tuple[int, int] | None = None,
        n_of_m: tuple[int, int] | None = None,
    ) -> SparseLinear:
        """A pruned layer: its largest weights (`density`, `block`, `n_of_m`), those of a mask, those that torch's
        pruning has left, or those that are not zero."""
        weight = layer.weight.detach()
        pattern = chosen(layer, weight, mask, density, block, n_of_m)
        made = cls(
            layer.in_features,
            layer.out_features,
            pattern=pattern,
            bias=layer.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        )
        with torch.no_grad():
            made.weight.values.copy_(weight[pattern.row, pattern.col])
            if made.bias is not None:
                made.bias.copy_(layer.bias)
        return made

    def forward(self, x: Tensor | SparseTensor) -> Tensor:
        if isinstance(x, SparseTensor):  # sparse by sparse is sparse, and a layer's result is dense
            made: Tensor = (x @ self.weight().t()).to_dense()
            return made if self.bias is None else made + self.bias
        out: Tensor = F.linear(x, self.weight(), self.bias)
        return out

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


def chosen(
    layer: nn.Module,
    weight: Tensor,
    mask: Tensor | Pattern | None,
    density: float | None,
    block: tuple[int, int] | None,
    n_of_m: tuple[int, int] | None,
) -> Pattern:
    """The places of a dense weight [out, in] that stay."""
    by_size = density is not None or block is not None or n_of_m is not None
    if mask is not None and by_size:
        raise PatternError("from_dense takes a mask, or density=, block= or n_of_m=, not both.")
    if by_size:
        if density is None and n_of_m is None:
            raise PatternError("blocks are chosen at a density=: say how many stay.")
        return patterns.strongest(weight, 1.0 if density is None else density, block, n_of_m)
    if isinstance(mask, Pattern):
        found = mask.canonical().to(weight.device)
    else:
        if mask is None:
            mask = patterns.mask_of(layer)
            mask = weight != 0 if mask is None else mask.reshape(weight.shape)
        if mask.dtype != torch.bool:
            raise PatternError(f"a mask is boolean, not {mask.dtype}: write mask != 0.")
        if mask.shape != weight.shape:
            raise PatternError(f"the mask is {tuple(mask.shape)}, and the weight {tuple(weight.shape)}.")
        found = Pattern(mask.nonzero().t().contiguous(), tuple(mask.shape)).canonical()
    if found.size != tuple(weight.shape):
        raise PatternError(f"the pattern is {found.size}, and the weight {tuple(weight.shape)}.")
    return found
