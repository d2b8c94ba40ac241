"""A mode that passes everything on, and remembers what it saw."""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode


class Seeing(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))

    @property
    def names(self) -> list[str]:
        return [func.__name__ for func in self.seen]
