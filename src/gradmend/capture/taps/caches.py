"""Tables that torch fills when Dynamo is imported or first used, keyed by torch's own functions.

Filled under our taps they would hold the taps. Seen on torch 2.13: a program whose first optimizer or torch.compile
came inside watch() could not compile `F.linear` afterwards. So Dynamo is imported with the taps off; and what
torch.overrides listed while they were on is emptied when they go, for torch to list again when it needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch

# Taps that Dynamo can't look into, and need not: all they do while it traces is to call the original.
opaque: list[Callable[..., Any]] = []
after_dynamo: list[Callable[[], None]] = []  # called once it is loaded, while the taps are on


class DynamoImport(MetaPathFinder):
    """Finds torch._dynamo as usual, and lets it load while the taps are off."""

    def __init__(self, unpatched: Callable[[], AbstractContextManager[None]]) -> None:
        self._unpatched = unpatched

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch._dynamo":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader)
        return spec

    def _wrap(self, loader: Loader) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with self._unpatched():
                run(module)
                fill()
            for ready in after_dynamo:
                ready()

        loader.exec_module = exec_module  # type: ignore[method-assign]


def fill() -> None:
    """Fill Dynamo's tables now, while every name is torch's own; it costs some ten milliseconds, once."""
    dynamo, rules = sys.modules.get("torch._dynamo"), sys.modules.get("torch._dynamo.trace_rules")
    if dynamo is not None:
        for tap in opaque:
            dynamo.allow_in_graph(tap)
    if rules is not None:
        for name in ("get_torch_obj_rule_map", "get_tensor_method"):
            getattr(rules, name, tuple)()
    variables = sys.modules.get("torch._dynamo.variables.torch")
    if variables is not None:
        for owner, name in (
            (variables, "get_overridable_functions"),
            (getattr(variables, "TorchInGraphFunctionVariable", None), "_get_handlers"),
        ):
            getattr(owner, name, tuple)()


@cache
def _caches() -> list[Any]:
    """Those of torch.overrides, which says what can be overridden by a list of torch's functions."""
    return [
        value
        for value in vars(torch.overrides).values()
        if hasattr(value, "cache_clear") and hasattr(value, "cache_info")
    ]


def sizes() -> dict[int, int]:
    """How full each is, to be given to `empty_newer`."""
    return {id(one): one.cache_info().currsize for one in _caches()}


def empty_newer(before: dict[int, int]) -> None:
    for one in _caches():
        if one.cache_info().currsize > before.get(id(one), 0):
            one.cache_clear()
