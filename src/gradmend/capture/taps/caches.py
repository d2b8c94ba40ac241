"""Tables that torch fills when Dynamo is imported or first used, keyed by torch's own functions.

Filled under our taps they would hold the taps. Seen on torch 2.13: a program whose first optimizer or torch.compile
came inside watch() could not compile `F.linear` afterwards. So Dynamo is imported with the taps off, and what was
filled all the same while they were on is emptied when they go; torch fills it again when it needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_MODULES = (
    "torch.overrides",
    "torch._dynamo.trace_rules",
    "torch._dynamo.variables.builtin",
    "torch._dynamo.variables.functions",
    "torch._dynamo.variables.tensor",
    "torch._dynamo.variables.torch",
)
_found: dict[str, tuple[Any, ...]] = {}


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

        loader.exec_module = exec_module  # type: ignore[method-assign]


def fill() -> None:
    """Fill Dynamo's tables now, while every name is torch's own; it costs some ten milliseconds, once."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        for name in ("get_torch_obj_rule_map", "get_tensor_method"):
            getattr(rules, name, tuple)()


def _of(owner: Any) -> Iterator[Any]:
    for value in list(vars(owner).values()):
        function = getattr(value, "__func__", value)  # a staticmethod or classmethod of a class
        if hasattr(function, "cache_clear") and hasattr(function, "cache_info"):
            yield function
        elif isinstance(value, type) and not isinstance(owner, type) and value.__module__ == owner.__name__:
            yield from _of(value)


def _caches() -> Iterator[Any]:
    for name in _MODULES:
        if name not in _found:
            module = sys.modules.get(name)
            if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue
            _found[name] = tuple(_of(module))
        yield from _found[name]


def sizes() -> dict[int, int]:
    """How full each is, to be given to `empty_newer`."""
    return {id(cache): cache.cache_info().currsize for cache in _caches()}


def empty_newer(before: dict[int, int]) -> None:
    for cache in _caches():
        if cache.cache_info().currsize > before.get(id(cache), 0):
            cache.cache_clear()
    fill()
