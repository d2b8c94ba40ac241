"""Real tensors that a dry run reaches through closures and globals: it stops before it changes one."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradmend.capture.sites import here

_GRAD: Any = torch._C.TensorBase.__dict__["grad"]


class ReachedError(RuntimeError):
    """A dry run is about to change a real tensor."""

    def __init__(self, t: torch.Tensor, line: int | None = None) -> None:
        where = f", line {line}" if line else ""
        super().__init__(
            f"dry_run() reached a real tensor (shape {tuple(t.shape)}{where}) that is not among its arguments: "
            "pass the module and its inputs as arguments, or make them inside the function"
        )


class Guard:
    """Under it, real tensors that no gradient goes to can be read; nothing else is done to a real one."""

    def __init__(self) -> None:
        self.reached: ReachedError | None = None
        self.below = 0  # in an op: PyTorch makes fake tensors of real ones there
        self._read: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        self._modes: tuple[Any, ...] = (_Ops(self), _Attributes(self))

    def __enter__(self) -> None:
        for mode in self._modes:
            mode.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(kind, error, trace)

    def stop(self, t: torch.Tensor) -> None:
        frame = here().user
        error = ReachedError(t, frame.line if frame else None)
        self.reached = self.reached or error
        raise error

    def read(self, t: torch.Tensor) -> None:
        if t.requires_grad and t.is_leaf:
            self._read.setdefault(id(t), (t, _GRAD.__get__(t)))

    def put_back(self) -> None:
        """A Function reads its inputs outside autograd, and gives them gradients all the same."""
        for t, grad in self._read.values():
            if t.grad is not grad:
                t.grad = grad
                self.reached = self.reached or ReachedError(t)


class _Ops(TorchDispatchMode):
    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.guard = guard

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for t in _real(_written(func, args, kwargs)):
            self.guard.stop(t)
        for t in _real((args, kwargs)):
            if t.requires_grad and torch.is_grad_enabled():
                self.guard.stop(t)
            self.guard.read(t)
        self.guard.below += 1
        try:
            return func(*args, **kwargs)
        finally:
            self.guard.below -= 1


class _Attributes:
    """What no op tells: they are stood in for on torch.Tensor, as a mode for functions would hide calls from the taps."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.thread = threading.get_ident()
        self.before: dict[str, Any] = {}

    def __enter__(self) -> None:
        # Reading .grad too: an optimizer makes its state before it writes a parameter.
        self._stand_in("grad", reading=True)
        self._stand_in("data")
        self._stand_in("requires_grad")
        plain: Any = torch.Tensor.requires_grad_
        self._set("requires_grad_", lambda t, needs=True: plain(self._asked(t), needs))

    def __exit__(self, *_: object) -> None:
        for name, way in self.before.items():
            if way is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, way)

    def _stand_in(self, name: str, reading: bool = False) -> None:
        way: Any = getattr(torch.Tensor, name)

        def get(t: torch.Tensor) -> Any:
            return way.__get__(self._asked(t) if reading else t)

        def put(t: torch.Tensor, value: Any) -> None:
            way.__set__(self._asked(t), value)

        def delete(t: torch.Tensor) -> None:
            way.__delete__(self._asked(t))

        self._set(name, property(get, put, delete))

    def _set(self, name: str, way: Any) -> None:
        self.before[name] = torch.Tensor.__dict__.get(name)
        setattr(torch.Tensor, name, way)

    def _asked(self, t: torch.Tensor) -> torch.Tensor:
        if not self.guard.below and threading.get_ident() == self.thread:
            for real in _real(t):
                self.guard.stop(real)
        return t


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    found = []
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[at] if at < len(args) else kwargs.get(argument.name))
    return found


def _real(tree: Any) -> Iterable[torch.Tensor]:
    from torch._subclasses.fake_tensor import is_fake

    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor) and not is_fake(t)]
