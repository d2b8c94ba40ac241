"""Values that a program's own saved-tensor hooks keep where no tensor of theirs shows: a slot number of an offload buffer, a key.

What they give back is compared with what they were given. Hooks may be lossy on purpose (half precision, int8), so a difference
counts only if these hooks have given back another tensor bit for bit, and if it is larger than rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gradmend.capture.graph import calls
from gradmend.capture.graph.nodes import current
from gradmend.capture.ledger.findings import SilentFinding
from gradmend.capture.ledger.scopes import Scope
from gradmend.capture.ledger.version_steps import key_of
from gradmend.capture.memory.layouts import PLAIN, has_values, physical
from gradmend.capture.sites import Raw
from gradmend.capture.unseen import hidden, without_grad

_detach = torch._C.TensorBase.detach
_MOST_SAMPLES = 64
_ROUNDING = 0.5  # of the largest sample: coarser than any quantization
_exact: set[Any] = set()  # code of unpack hooks that have given back a tensor bit for bit


class _Handed(threading.local):
    """The value that this thread's hooks gave back last: for which node, and what it held."""

    last: tuple[int, torch.Tensor, torch.Tensor] | None = None


_handed = _Handed()


class Given(NamedTuple):
    """What a pack hook was given."""

    hash: torch.Tensor
    samples: torch.Tensor
    like: tuple[torch.Size, torch.dtype, torch.device]
    scope: Scope
    raw: Raw


@hidden
def given(t: torch.Tensor, scope: Scope, raw: Raw) -> Given | None:
    if (
        type(t) not in PLAIN
        or t.layout is not torch.strided
        or not t.is_floating_point()
        or not has_values(t)
    ):
        return None
    if not t.numel():
        return None
    return without_grad(lambda: Given(*_look(t), (t.shape, t.dtype, t.device), scope, raw))


def _look(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    flat = physical(_detach(t)).reshape(-1)
    step = -(-flat.numel() // _MOST_SAMPLES)
    return torch.hash_tensor(flat), flat[::step].clone()


@hidden
def check(was: Given, value: Any, unpack: Callable[..., Any]) -> None:
    """Raises, as the policy says, if the hooks lost the value."""
    if type(value) not in PLAIN or (value.shape, value.dtype, value.device) != was.like or was.scope.plain:
        return
    code = getattr(unpack, "__code__", unpack)
    hashed, samples = without_grad(_look, value)
    if torch.equal(hashed, was.hash) and torch.equal(samples, was.samples):
        if len(samples.unique()) > 1:
            _exact.add(code)
        return
    apart, scale = (samples - was.samples).abs().max(), was.samples.abs().max()
    if code in _exact and not bool(apart <= _ROUNDING * scale):
        tensor = tuple(value.shape), str(value.dtype).removeprefix("torch.")
        _stop(was.scope, was.raw, tensor)


@hidden
def handed_out(value: Any, scope: Scope, raw: Raw) -> None:
    """Raises if this value overwrote the one that the node got for its other slot: one buffer for both."""
    node = current()
    last, _handed.last = _handed.last, None
    if node is None or type(value) not in PLAIN or value.layout is not torch.strided or not has_values(value):
        return
    number = int(node._sequence_nr())
    hashed = without_grad(_hash, value)
    again = last is not None and last[0] == number and key_of(last[1]) == key_of(value) and not scope.plain
    if again and last is not None and not torch.equal(without_grad(_hash, last[1]), last[2]):
        _stop(scope, raw, (tuple(value.shape), str(value.dtype).removeprefix("torch.")))
    _handed.last = number, value, hashed


def _hash(t: torch.Tensor) -> torch.Tensor:
    return torch.hash_tensor(physical(_detach(t)))


def _stop(scope: Scope, raw: Raw, tensor: tuple[tuple[int, ...], str]) -> None:
    finding = SilentFinding(
        "GM202", [], made=raw, backward=calls.where(), tensor=tensor, facts={"why": "hooks"}
    )
    error = scope.tell(finding)
    if error is not None:
        raise error
