"""Where the names live by which a program reaches a writing op, and the wrapper each gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, starmap
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import torch

from gradmend.capture.taps import hub, scripted, single_views, special, wrappers
from gradmend.capture.taps.schemas import Writes, writes_of, writing_ops

OPERATORS = (
    "__iadd__ __isub__ __imul__ __idiv__ __itruediv__ __ifloordiv__ __imod__ __ipow__ "
    "__iand__ __ior__ __ixor__ __ilshift__ __irshift__"
).split()

# Tensor methods that write by a Python function or an element at a time: in no schema.
UNSCHEMED_METHODS = ("apply_", "map_", "map2_")


class Patch(NamedTuple):
    owner: Any
    name: str
    value: Any


def _namespaces() -> list[Any]:
    import torch.nn.functional

    names = ["linalg", "fft", "special", "sparse", "nn.functional", "_VF", "_C._nn", "_C._linalg", "_C._fft"]
    names += ["_C._special", "_C._sparse", "_C._nested", "_C._VariableFunctions", "nn.init"]
    found: list[Any] = [torch]
    for name in names:
        owner: Any = torch
        for part in name.split("."):
            owner = getattr(owner, part, None)
        if owner is not None:
            found.append(owner)
    return found


def _methods() -> Iterator[Patch]:
    base, top = torch._C.TensorBase, torch.Tensor
    for op, writes in writing_ops().items():
        if writes.args and writes.args[0][0] == 0 and op.endswith("_") and hasattr(base, op):
            if op in special.OWN_METHODS:
                continue
            yield Patch(top, op, wrappers.method(getattr(top, op), op))
    for op in (*OPERATORS, *UNSCHEMED_METHODS):
        if hasattr(top, op):  # __itruediv__ and __ipow__ are torch.Tensor's own
            yield Patch(top, op, wrappers.method(getattr(top, op), op))
    yield Patch(top, "__setitem__", wrappers.method(base.__setitem__, "__setitem__", hub.heard_item))


def _functions() -> Iterator[Patch]:
    """Every builtin of a torch namespace whose op writes; one wrapper for each, under all its names."""
    ops = writing_ops()
    made: dict[int, Callable[..., Any]] = {}
    for space in _namespaces():
        # torch._VF answers for another object's names, which it does not list.
        for name in dir(torch._C._VariableFunctions if space is torch._VF else space):
            value = getattr(space, name, None)
            if not isinstance(value, BuiltinFunctionType) or name.startswith("__"):
                continue
            op = _op_of(value, name, ops)
            if op is None:
                continue
            if id(value) not in made:
                made[id(value)] = wrappers.function(value, op, ops[op])
            if space is torch._C._VariableFunctions:
                continue  # switch.py puts all that torch has of it on its class
            yield Patch(space, name, made[id(value)])


def _op_of(value: Any, name: str, ops: dict[str, Writes]) -> str | None:
    for candidate in (value.__name__, name, f"linalg_{name}", f"special_{name}", f"fft_{name}"):
        if candidate in ops:
            return candidate
    return None


def _teach_jit(found: Iterable[Patch]) -> None:
    """torch.jit knows builtins by identity: scripted code that names a tapped one must still compile."""
    from torch.jit._builtins import _get_builtin_table

    table = _get_builtin_table()
    for patch in found:
        key = id(getattr(patch.value, "__gradmend_original__", None))
        if key in table:
            table[id(patch.value)] = table[key]


# By id, as hashing an overload runs Python; each is held, so that its id stays its own.
_known_overloads: dict[int, tuple[Any, tuple[str, Writes] | None]] = {}


def _overload_table(op: Any) -> tuple[str, Writes] | None:
    known = _known_overloads.get(id(op))
    if known is None:
        known = _known_overloads[id(op)] = op, _overload(op)
    return known[1]


def _overload(op: Any) -> tuple[str, Writes] | None:
    schemas = [op._schema] if hasattr(op, "_schema") else list(getattr(op, "_schemas", {}).values())
    name = schemas[0].name.partition("::")[2] if schemas else ""
    writes = writes_of(name, schemas)
    return (name, writes) if any(writes) else None


def _overload_calls() -> Iterator[Patch]:
    from torch._ops import OpOverload, OpOverloadPacket

    for kind in (OpOverload, OpOverloadPacket):
        yield Patch(kind, "__call__", wrappers.overload_call(kind.__call__, _overload_table))


@cache
def patches() -> tuple[Patch, ...]:
    others = (special.patches(), single_views.patches(), scripted.patches())
    found = (*_methods(), *_functions(), *_overload_calls(), *starmap(Patch, chain(*others)))
    _teach_jit(found)
    return found
