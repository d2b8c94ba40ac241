"""Whether a compiled kernel may serve a call, and at which width."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

# Below this many multiply-adds torch's own ops win, and nobody waits for a compiler.
SMALL = 1 << 16

_TAGS = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
_SIZES = {"f32": 4, "f64": 8, "bf16": 4, "f16": 4}  # bytes of a lane as computed with


class Plan(NamedTuple):
    tag: str  # how elements lie in memory
    wide: str  # and how sums of them are kept
    runs: tuple[int, int, int]  # lanes held at once, lanes of the tail or 0, valid lanes of the last run


@cache
def _features() -> dict[str, bool] | None:
    """The CPU's features, or None where numba is missing or switched off (GRADMEND_NUMBA=0, NUMBA_DISABLE_JIT=1)."""
    if os.environ.get("GRADMEND_NUMBA") == "0" or importlib.util.find_spec("numba") is None:
        return None
    try:
        from llvmlite.binding import get_host_cpu_features
        from numba.core import config

        from gradmend.sparse.kernels import compiled  # noqa: F401  # a numba that does not import is no numba
    except Exception:
        return None
    if getattr(
        config, "DISABLE_JIT", False
    ):  # our kernels are LLVM's instructions, and mean nothing to Python
        return None
    # NUMBA_CPU_FEATURES: what numba compiles for, whatever the machine has.
    wanted: str | None = getattr(config, "CPU_FEATURES", None)
    if wanted is not None:
        return {word[1:]: word[0] == "+" for word in wanted.split(",") if word}
    try:
        return dict(get_host_cpu_features())
    except RuntimeError:  # a CPU that LLVM can't ask
        return {}


def available() -> bool:
    """There is a compiler."""
    return _features() is not None


@cache
def plan(dtype: torch.dtype, k: int, registers: int = 8) -> Plan | None:
    """How to run rows of k elements, so many registers at once, or None when torch's ops must do."""
    tag = _TAGS.get(dtype)
    if tag is None or k == 0 or (features := _features()) is None:
        return None
    if tag == "f16" and not (features.get("f16c") or features.get("fullfp16") or features.get("fp-armv8")):
        return None
    return Plan(tag, "f64" if tag == "f64" else "f32", runs(k, *lanes_of(tag, features), registers))


def lanes_of(tag: str, features: Mapping[str, bool]) -> tuple[int, bool]:
    """How many lanes a register has, and whether the machine can leave some of them out when it reads and writes."""
    small = tag in ("bf16", "f16")
    if features.get("avx512f"):
        return 64 // _SIZES[tag], not small or bool(features.get("avx512bw") and features.get("avx512vl"))
    if features.get("avx"):
        return 32 // _SIZES[tag], not small
    return 16 // _SIZES[tag], False


def runs(k: int, lanes: int, masks: bool, registers: int = 8) -> tuple[int, int, int]:
    """k elements as runs of up to eight registers, whole lanes and a tail."""
    most = registers * lanes
    for width in range(most, most // 2 - 1, -lanes):
        if k % width == 0:
            return width, 0, width
    left = k % most
    if left < lanes:  # a register of its own size
        width = 1 << (left - 1).bit_length()
        step = width
    else:
        width, step = -(-left // lanes) * lanes, lanes
    valid = width if left == width else (-step if masks else left)
    return (most, width, valid) if k > most else (width, 0, valid)


def usable(*tensors: Tensor) -> bool:
    """Plain CPU memory of one dtype that no gradient is to be recorded for."""
    dtype, grad = tensors[0].dtype, torch.is_grad_enabled()
    for t in tensors:
        if (
            t.dtype is not dtype
            or not t.is_cpu
            or t.layout is not torch.strided
            or (grad and t.requires_grad)
        ):
            return False
    return True


def rows(X: Tensor) -> tuple[Tensor, int]:
    """X with adjacent elements in each row, and the stride from row to row; an expanded row is kept once."""
    if X.is_neg():
        X = X.resolve_neg()
    if X.stride(0) == 0 and X.shape[0] > 1:
        return X[:1].contiguous(), 0
    if X.stride(1) != 1 and X.shape[1] > 1:
        X = X.contiguous()
    return X, X.stride(0) if X.shape[0] > 1 else X.shape[1]


def flat(values: Tensor) -> Tensor:
    return (values.resolve_neg() if values.is_neg() else values).contiguous()


def places(index: Tensor) -> Tensor:
    """Indices as the kernels read them: int64, one after the other."""
    return index.to(torch.int64).contiguous()
