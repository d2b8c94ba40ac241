"""The table from torch's functions to ours: what makes `torch.sum(S, 0)` and `S.sum(0)` one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F

from gradmend.sparse.boundary import told
from gradmend.sparse.errors import unsupported
from gradmend.sparse.torch_releases import traced_name

Op = Callable[..., Any]
T = TypeVar("T", bound=Op)

TABLE: dict[Any, Op] = {}
METHODS: dict[str, Op] = {}
NAMES: dict[str, Op] = {}  # for torch.compile, which can't look functions up in a dict (2.13)

# Where torch keeps the spellings of one operation.
_HOMES: tuple[Any, ...] = (torch, torch.Tensor, torch.sparse, torch.linalg, torch.special, F)


def implements(*names: str, also: tuple[Any, ...] = (), method: bool = True) -> Callable[[T], T]:
    """Registers an operation under each name: torch's functions of that name, and a method of ours."""

    def register(op: T) -> T:
        for name in names:
            for home in _HOMES:
                spelled = getattr(home, name, None)
                if callable(spelled):
                    _add(spelled, op)
            if method:
                METHODS[name] = op
        for spelled in also:
            TABLE[spelled] = NAMES[spelled.__name__] = op
        return op

    return register


def _add(spelled: Any, op: Op) -> None:
    """The first to claim a spelling keeps it; `also` overrules."""
    TABLE.setdefault(spelled, op)
    NAMES.setdefault(spelled.__name__, op)


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if torch.compiler.is_compiling():
        if (op := NAMES.get(traced_name(func))) is None:
            raise unsupported(name_of(func))
        return op(*args, **kwargs)
    if (op := TABLE.get(func)) is None:
        raise unsupported(name_of(func))
    try:
        return op(*args, **kwargs)
    except Exception as error:
        instead = told(name_of(func), args, error)
        if instead is error:
            raise
        raise instead from error


def name_of(func: Any) -> str:
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        return "this attribute"
    return f"torch.{name}"
