"""Mends two holes in torch.compile (2.13), when Dynamo itself is loaded: that takes seconds, so importing
gradmend.sparse doesn't do it.

- It traces `S @ X` as `X @ S`: it meets a left operand that is no Tensor, swaps the operands, and looks up the
  reversed operator in a map which has `-`, `/`, `**`, ... but not `@`, so the swapped product is computed.
- Its list of functions that ask `__torch_function__` lacks those of `torch.sparse`, which do ask when run eagerly.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import operator
import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.overrides

from gradmend.sparse.errors import SparseError

mended = False
_kept: list[Any] = []


def _mend_operators(module: ModuleType) -> None:
    global mended
    reverse = getattr(module, "BUILTIN_TO_TENSOR_RFN_MAP", None)
    if isinstance(reverse, dict):
        reverse.setdefault(operator.matmul, torch.Tensor.__rmatmul__)
        reverse.setdefault(operator.imatmul, torch.Tensor.__rmatmul__)
        mended = True


def _mend_functions(module: ModuleType) -> None:
    listed = getattr(module, "get_overridable_functions", None)
    if listed is None:  # then these functions refuse to be traced, and say so
        return

    @cache
    def get_overridable_functions() -> set[Any]:
        from gradmend.sparse.dispatch import TABLE

        own = {f for f in vars(torch.sparse).values() if callable(f) and f in TABLE}
        return {*listed(), *own, torch.sparse.sum}

    _kept.extend((get_overridable_functions, listed))
    setattr(module, "get_overridable_functions", get_overridable_functions)  # noqa: B010


def forget() -> None:
    """Drops those lists: they are made once, and may have been while others stood in the place of torch's functions."""
    for f in (*_kept, *vars(torch.overrides).values()):
        if hasattr(f, "cache_clear"):
            f.cache_clear()


_HOMES: dict[str, Callable[[ModuleType], None]] = {
    "torch._dynamo.variables.builtin": _mend_operators,
    "torch._dynamo.variables.torch": _mend_functions,
}


def install() -> None:
    waiting = dict(_HOMES)
    for name in _HOMES:
        if name in sys.modules:
            waiting.pop(name)(sys.modules[name])
    if waiting and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(waiting))


def check() -> None:
    """Rather no product than the wrong one."""
    if torch.compiler.is_compiling() and not mended:
        raise SparseError(
            "this version of torch.compile keeps no map of reversed operators, so that S @ X could be traced "
            "with its operands swapped: keep products with sparse tensors outside the compiled function."
        )


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for these modules, lets the others find them, and mends each once it is executed."""

    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self.waiting = waiting

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        mend = self.waiting.pop(name, None)
        if mend is None:
            return None
        if not self.waiting:
            sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                mend(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
