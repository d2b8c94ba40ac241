"""A trainable sparse tensor: a pattern, and a Parameter of its values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradmend.sparse.errors import PatternError
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor, make


class SparseWeight(nn.Module):
    """Call it to get the SparseTensor of the current values.

    >>> weight = SparseWeight(Pattern.random((8, 8), density=0.25))
    >>> torch.optim.AdamW(weight.parameters()).step()

    Any optimizer, clipping, AMP, DDP and state_dict see one dense Parameter, `values`. The pattern is saved
    with the state and checked (or, if it differs, replaced) when it is loaded.
    """

    def __init__(self, pattern: Pattern, values: Tensor | None = None) -> None:
        super().__init__()
        self._pattern = pattern.canonical()
        if values is None:
            values = torch.empty(self._pattern.nnz, device=pattern.device)
            nn.init.normal_(values, std=self._spread())
        else:
            values = pattern.arrange(values.detach().clone())
        if values.shape[0] != self._pattern.nnz:
            raise PatternError(f"{values.shape[0]} values for {self._pattern.nnz} entries.")
        self.values = nn.Parameter(values)

    def _spread(self) -> float:
        """Keeps the scale of activations: one over the root of the entries per row."""
        rows = max(self._pattern.size[0], 1)
        return max(self._pattern.nnz / rows, 1.0) ** -0.5

    @property
    def pattern(self) -> Pattern:
        if self._pattern.device != self.values.device:
            self._pattern = self._pattern.to(self.values.device)
        return self._pattern

    def forward(self) -> SparseTensor:
        return make(self.pattern, self.values)

    def get_extra_state(self) -> dict[str, Any]:
        return {"indices": self._pattern._indices, "size": list(self._pattern.size)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        loaded = Pattern(state["indices"].to(self.values.device), state["size"])
        if loaded.size != self._pattern.size:
            raise PatternError(
                f"the saved pattern is {loaded.size}, and this module's is {self._pattern.size}."
            )
        if loaded.nnz != self.values.shape[0]:
            raise PatternError(
                f"the saved pattern has {loaded.nnz} entries and this module {self.values.shape[0]}: build it "
                f"with the saved pattern first."
            )
        if loaded != self.pattern:
            self._pattern = loaded

    def extra_repr(self) -> str:
        return repr(self._pattern)
