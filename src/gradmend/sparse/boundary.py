"""Where a user's call meets ours: whatever fails below with a plain error of Python's or torch's is told as one of ours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from gradmend.errors import GradmendError
from gradmend.sparse.errors import ArgumentError, OutsideError, SparseError

T = TypeVar("T", bound=Callable[..., Any])

# Only these themselves: a class of its own (out of memory, a compiler's) has somebody who waits for it.
_PLAIN: dict[type[Exception], type[SparseError]] = {
    TypeError: ArgumentError,
    ValueError: ArgumentError,
    AttributeError: ArgumentError,
    KeyError: ArgumentError,
    OverflowError: ArgumentError,
    IndexError: OutsideError,
    RuntimeError: SparseError,
    NotImplementedError: SparseError,
    ZeroDivisionError: SparseError,
    AssertionError: SparseError,  # torch's word for a device that it was not built for
}


def told(name: str, args: tuple[Any, ...], error: Exception) -> Exception:
    """The error to raise instead, or the very same."""
    kind = _PLAIN.get(type(error))
    if kind is None or isinstance(error, GradmendError):
        return error
    shapes = [f"{type(x).__name__} {tuple(x.shape)}" for x in args if hasattr(x, "shape")]
    said = str(error).strip().splitlines() or [type(error).__name__]
    return kind(f"{name} can't take these arguments ({', '.join(shapes) or 'no tensor'}): {said[0]}")


def guarded(name: str, op: T) -> T:
    """An operation as a user's method."""

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return op(*args, **kwargs)
        try:
            return op(*args, **kwargs)
        except Exception as error:
            instead = told(name, args, error)
            if instead is error:
                raise
            raise instead from error

    return call  # type: ignore[return-value]
