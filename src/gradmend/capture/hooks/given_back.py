"""Values that a program's own saved-tensor hooks keep where no tensor of theirs shows: a slot number of an offload buffer, a key.

What they give back is compared with what they were given. Hooks may be lossy on purpose (half precision, int8), so a difference
counts only if these hooks have given back another tensor bit for bit, and if it is larger than rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gradmend.capture.graph import calls
from gradmend.capture.ledger.findings import SilentFinding
from gradmend.capture.ledger.scopes import Scope
from gradmend.capture.memory.layouts import PLAIN, has_values, physical
from gradmend.capture.sites import Raw
from gradmend.capture.unseen import hidden, without_grad

_detach = torch._C.TensorBase.detach
_MOST_SAMPLES = 64
_ROUNDING = 0.5  # of the largest sample: coarser than any quantization
_exact: set[Any] = set()  # code of unpack hooks that have given back a tensor bit for bit


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
        finding = SilentFinding(
            "GM202", [], made=was.raw, backward=calls.where(), tensor=tensor, facts={"why": "hooks"}
        )
        error = was.scope.tell(finding)
        if error is not None:
            raise error
