"""A trainable sparse tensor: a pattern, and a Parameter of its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gradmend.sparse.errors import PatternError
from gradmend.sparse.nn import ranks
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor, make


class SparseWeight(nn.Module):
    """Call it to get the SparseTensor of the current values.

    >>> weight = SparseWeight(Pattern.random((8, 8), density=0.25))
    >>> torch.optim.AdamW(weight.parameters()).step()

    Any optimizer, clipping, AMP, DDP and state_dict see one dense Parameter, `values`. The pattern is saved with the
    state and restored from it, whatever its number of entries. Under DDP all ranks take rank 0's.
    """

    fingerprint: Tensor

    def __init__(self, pattern: Pattern, values: Tensor | None = None) -> None:
        super().__init__()
        if not isinstance(pattern, Pattern):
            raise PatternError(f"SparseWeight takes a Pattern, not {type(pattern).__name__}: use S.pattern.")
        self._pattern = pattern.canonical()
        self._mark: tuple[Pattern, list[int]] | None = None
        if values is None:
            values = torch.empty(self._pattern.nnz, device=_device(pattern))
            nn.init.normal_(values, std=self._spread())
        else:
            if not isinstance(values, Tensor):
                raise PatternError(f"values are a tensor, not {type(values).__name__}.")
            if not (values.is_floating_point() or values.is_complex()):
                raise PatternError(f"values of {values.dtype} can't be trained: convert them with .float().")
            if values.dim() == 0 or values.shape[0] != pattern.given:
                raise PatternError(f"values of the shape {tuple(values.shape)} for {pattern.given} entries.")
            values = pattern.arrange(values.detach().clone())
        self.values = nn.Parameter(values)
        self.register_buffer("fingerprint", torch.zeros(2, dtype=torch.int64), persistent=False)
        self._stamp()

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
        ranks.check(self)
        return make(self.pattern, self.values)

    def __setattr__(self, name: str, value: Any) -> None:
        # torch's parametrize keeps what it does to `values` under that name in a ModuleDict, which has a method of it.
        if name == "parametrizations" and type(value) is nn.ModuleDict:
            value = _Named(dict(value.items()))
        super().__setattr__(name, value)

    def adopt(self, pattern: Pattern) -> None:
        """Takes other places of the same size; with another number of entries, `values` gets room for them."""
        if pattern.size != self._pattern.size:
            raise PatternError(
                f"the saved pattern is {pattern.size}, and this module's is {self._pattern.size}."
            )
        if self.values.shape[0] != pattern.nnz and "values" not in self._parameters:
            raise PatternError(
                f"the values are computed from others (pruned or parametrized), which have room for "
                f"{self.values.shape[0]} entries and not for {pattern.nnz}: undo that first."
            )
        self._pattern = pattern.canonical()
        if self.values.shape[0] != self._pattern.nnz:
            # The same Parameter: an optimizer goes on holding it. Its state for the old entries has to be reset.
            self.values.data = self.values.data.new_zeros(self._pattern.nnz, *self.values.shape[1:])
        self._stamp()

    def _stamp(self) -> None:
        if not self.fingerprint.is_meta:
            with torch.no_grad():
                self.fingerprint.copy_(torch.tensor(ranks.mark_of(self), device="cpu"))

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> SparseWeight:
        made = super()._apply(fn, recurse)
        self._stamp()  # to_empty() would leave anything in it
        return made

    def get_extra_state(self) -> dict[str, Any]:
        return {"indices": self._pattern.indices(), "size": list(self._pattern.size)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        loaded = _saved(state).to(self.values.device)
        if loaded != self.pattern:
            self.adopt(loaded)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """The pattern first: it says how many values there are."""
        state = state_dict.get(f"{prefix}_extra_state")
        values = state_dict.get(f"{prefix}values")
        if state is not None:
            loaded = _saved(state)
            if values is not None and not isinstance(values, Tensor):
                raise PatternError(
                    f"the saved values of {prefix or 'a sparse weight'} are a {type(values).__name__}, no tensor."
                )
            if values is not None and values.shape[:1] != (loaded.nnz,):
                raise PatternError(
                    f"the saved state of {prefix or 'a sparse weight'} has {tuple(values.shape)} values for {loaded.nnz} places."
                )
            self.set_extra_state(state)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return repr(self._pattern)


class _Named(nn.ModuleDict):
    """A ModuleDict with any names at all: modules are found by [name], as parametrize does."""

    def add_module(self, name: str, module: nn.Module | None) -> None:
        assert module is not None
        self._modules[name] = module


def _saved(state: Any) -> Pattern:
    if not isinstance(state, dict) or not {"indices", "size"} <= state.keys():
        raise PatternError("the saved state of a sparse weight holds no pattern.")
    if state["size"] is None:
        raise PatternError("the saved pattern is damaged: it has no size.")
    found = Pattern(state["indices"], state["size"])
    if not found.is_canonical:
        # Sorting them here would leave the values behind, and the optimizer's state for each of them.
        raise PatternError("the saved pattern is damaged: its places are not in order, or some come twice.")
    return found


def _device(pattern: Pattern) -> torch.device:
    """That of the pattern, but under `torch.device("meta")` values have no memory yet."""
    found = torch.get_default_device()
    return found if found.type == "meta" else pattern.device
