"""Mends a hole in torch.compile: on torch 2.13 it traces `S @ X` as `X @ S`.

Dynamo meets a left operand that is no Tensor, swaps the operands, and looks up the reversed operator in a map
which has `-`, `/`, `**`, ... but not `@`, so the swapped product is computed. The entry is added here, when
Dynamo itself is loaded (which takes seconds: importing gradmend.sparse doesn't do it).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import operator
import sys
from collections.abc import Sequence
from types import ModuleType

import torch

from gradmend.sparse.errors import SparseError

_HOME = "torch._dynamo.variables.builtin"
mended = False


def mend(module: ModuleType) -> None:
    global mended
    reverse = getattr(module, "BUILTIN_TO_TENSOR_RFN_MAP", None)
    if isinstance(reverse, dict):
        reverse.setdefault(operator.matmul, torch.Tensor.__rmatmul__)
        reverse.setdefault(operator.imatmul, torch.Tensor.__rmatmul__)
        mended = True


def install() -> None:
    if _HOME in sys.modules:
        mend(sys.modules[_HOME])
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def check() -> None:
    """Rather no product than the wrong one."""
    if torch.compiler.is_compiling() and not mended:
        raise SparseError(
            "this version of torch.compile keeps no map of reversed operators, so that S @ X could be traced "
            "with its operands swapped: keep products with sparse tensors outside the compiled function."
        )


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for one module, lets the others find it, and mends it once it is executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _HOME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                mend(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
