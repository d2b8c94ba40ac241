"""The objects under torch's names while the taps are on: each equals what it replaces, and is pickled as that.

PyTorch looks up by name the function that it gives to a `__torch_function__`, so a program finds the very object that it
knows by that name, and a table that was made before the scope finds it by equality.
"""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from gradmend.capture import edge
from gradmend.capture.taps import caches

Func = Callable[..., Any]


class _StandIn:
    """In Python: a class for each name, so that a call of its instance is one of `slow` with no frame between."""

    def __init__(self, original: Func) -> None:
        self.__gradmend_original__ = original
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            if (value := getattr(original, name, None)) is not None:
                setattr(self, name, value)

    @classmethod
    def of(cls, original: Func, slow: Func) -> Any:
        made = type(cls.__name__, (cls,), {"__call__": staticmethod(slow)})(original)
        caches.opaque.append(made)
        return made

    def __hash__(self) -> int:
        return hash(self.__gradmend_original__)

    def __eq__(self, other: object) -> bool:
        theirs = getattr(other, "__gradmend_original__", other)
        return bool(self.__gradmend_original__ == theirs)

    def __getattr__(self, name: str) -> Any:
        if name == "__gradmend_original__":
            raise AttributeError(name)
        return getattr(self.__gradmend_original__, name)

    def __repr__(self) -> str:
        return repr(self.__gradmend_original__)

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        if isinstance(self.__gradmend_original__, FunctionType):
            # Python pickles a function by its name, under which there is this object, or the original once the scope is left.
            return getattr, (torch.Tensor, self.__name__)
        return self.__gradmend_original__.__reduce_ex__(protocol)


class _Method(_StandIn):
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)  # type: ignore[arg-type]  # each is called


_Tap, _Function = edge.chosen("Tap", None), edge.chosen("Function", None)
_NOBODY: set[str] = set()


def method(original: Func, slow: Func, heard: Func | None, op: str, how: str, awake: set[str]) -> Func:
    """For a method of torch.Tensor. Calls of a plain tensor go to `heard` while somebody listens, where that is given."""
    if _Tap is None:
        return _Method.of(original, slow)
    tap: Func = _Tap(original, slow, heard, op, how, awake, torch._C._has_torch_function_unary)
    tap.__gradmend_original__ = original  # type: ignore[attr-defined]
    tap.__doc__ = original.__doc__
    tap.__module__, tap.__qualname__ = "torch._tensor", f"Tensor.{op}"  # how a graph writes it down
    caches.opaque.append(tap)
    return tap


def function(original: Func, slow: Func, writes: bool, awake: set[str]) -> Func:
    """For a function of a torch namespace. `writes`: it changes its arguments, and not only what it is given as `out`."""
    if _Function is None or type(original) is not BuiltinFunctionType:
        return _StandIn.of(original, slow)
    tap: Func = _Function(original, slow, awake, "torch", writes)
    return tap


_ALWAYS = {"saves"}


def standing(owner: Any, original: Func, slow: Any) -> Any:
    """For a name whose calls all go to `slow`, a function in Python or a descriptor."""
    if isinstance(slow, (property, staticmethod)):
        return slow
    if owner is torch.Tensor:
        return method(original, slow, None, original.__name__, "", _NOBODY)
    if isinstance(original, BuiltinFunctionType):
        return function(original, slow, True, _ALWAYS)
    # Not functools.wraps: __wrapped__ would mislead inspect.
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        if hasattr(original, name):
            setattr(slow, name, getattr(original, name))
    slow.__gradmend_original__ = original
    return slow


__all__ = ["Func", "function", "method", "standing"]
