"""Convolution of rows by a kernel map: compiled where it pays, torch's products of gathered rows everywhere else.

A map is `ptr` [offsets + 1], `source` and `target` [pairs]: the pairs of offset k are ptr[k]:ptr[k + 1], with input and
output rows that both ascend.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import team
from gradmend.sparse.kernels.checks import address, operand, same_device
from gradmend.sparse.kernels.gate import SMALL, Plan, available, flat, plan, usable
from gradmend.sparse.kernels.team import run

_REGISTERS = 2
_INDEX = torch.int64
_FEW = 1 << 10


def _plan(pairs: int, X: Tensor, other: Tensor, c_out: int) -> Plan | None:
    work = pairs * X.shape[1] * c_out
    if work < SMALL or X.dtype not in (torch.float32, torch.float64) or not usable(X, other):
        return None
    return plan(X.dtype, c_out, _REGISTERS)


def gather(ptr: Tensor, source: Tensor, target: Tensor, X: Tensor, W: Tensor, rows: int) -> Tensor:
    """[rows, c_out]: out[target] += X[source] @ W[k]. The map is trusted; X and W are not."""
    offsets, pairs = ptr.shape[0] - 1, source.shape[0]
    operand("features", X, None, None)
    operand("the weight", W, offsets, X.shape[1], None)
    same_device(source, X, W)
    c_in, c_out = W.shape[1:]
    low = X.dtype in (torch.bfloat16, torch.float16)
    if low:  # sums over offsets are kept in high precision
        return gather(ptr, source, target, X.float(), W.float(), rows).to(X.dtype)
    out = X.new_zeros(rows, c_out)
    if (how := _plan(pairs, X, W, c_out)) is None:
        with torch.autocast(X.device.type, enabled=False):  # the caller has cast
            for k, (a, b) in enumerate(_ranges(ptr)):
                if b > a:
                    out.index_add_(0, target[a:b], X.index_select(0, source[a:b]) @ W[k])
        return out
    from gradmend.sparse.kernels import compiled_convolve

    X, W = flat(X), flat(W)
    run(
        compiled_convolve.gather(how.tag, how.runs),
        pairs * c_in * c_out,
        *_map(ptr, source, target),
        address(X, tuple(X.shape), X.dtype),
        address(W, tuple(W.shape), X.dtype),
        address(out, (rows, c_out), X.dtype),
        offsets,
        rows,
        c_in,
        c_out,
    )
    return out


def outer(ptr: Tensor, source: Tensor, target: Tensor, X: Tensor, G: Tensor) -> Tensor:
    """[offsets, c_in, c_out]: the sum over an offset's pairs of X[source]^T G[target]."""
    offsets, pairs = ptr.shape[0] - 1, source.shape[0]
    operand("features", X, None, None)
    operand("the gradient", G, None, None)
    same_device(source, X, G)
    c_in, c_out = X.shape[1], G.shape[1]
    if X.dtype in (torch.bfloat16, torch.float16):
        return outer(ptr, source, target, X.float(), G.float()).to(X.dtype)
    if (how := _plan(pairs, X, G, c_out)) is None:
        with torch.autocast(X.device.type, enabled=False):
            made = [
                X.index_select(0, source[a:b]).t() @ G.index_select(0, target[a:b]) for a, b in _ranges(ptr)
            ]
        return torch.stack(made) if made else X.new_zeros(0, c_in, c_out)
    from gradmend.sparse.kernels import compiled_convolve

    X, G = flat(X), flat(G)
    work = pairs * c_in * c_out
    shares = min(team.threads_for(work) * 2, 8)
    out = X.new_zeros(shares, offsets, c_in, c_out)
    run(
        compiled_convolve.outer(how.tag, how.runs),
        work,
        *_map(ptr, source, target),
        address(X, tuple(X.shape), X.dtype),
        address(G, tuple(G.shape), X.dtype),
        address(out, tuple(out.shape), X.dtype),
        offsets,
        shares,
        c_in,
        c_out,
    )
    return out.sum(0) if shares > 1 else out[0]


def pairs(
    keys: Tensor, base: Tensor, deltas: Tensor, mirrored: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """(ptr, source, target): for each delta, which of base + delta are among keys. Both ascend, nothing twice.

    `mirrored`: keys and base number the same places, and the deltas are symmetric around the one that leads from each
    place to itself, so that the last have the pairs of the first, turned round.
    """
    for name, t in (("keys", keys), ("the base", base)):
        if t.dim() != 1 or bool((t[1:] <= t[:-1]).any()):
            raise SparseError(f"{name} must ascend, none of them twice.")
    count = deltas.shape[0]
    needed = count // 2 + 1 if mirrored else count
    match = _compiled_match if keys.is_cpu and available() and base.shape[0] >= _FEW else _match
    found = match(keys.contiguous(), base.contiguous(), deltas[:needed].tolist())
    if mirrored:
        found += [(target, source) for source, target in reversed(found[: count // 2])]
    lengths = torch.tensor([0, *(source.shape[0] for source, _ in found)], device=keys.device)
    nothing = keys[:0]
    source, target = (torch.cat([nothing, *side]) for side in zip(*found, strict=True))
    return lengths.cumsum(0), source, target


def _compiled_match(keys: Tensor, base: Tensor, deltas: list[int]) -> list[tuple[Tensor, Tensor]]:
    from gradmend.sparse.kernels import compiled_convolve

    room = torch.empty(2, base.shape[0] + 1, dtype=_INDEX)
    given, made = (keys.numpy(), base.numpy()), []
    for delta in deltas:
        n = compiled_convolve.match(*given, delta, room[0].numpy(), room[1].numpy())
        made.append((room[0, :n].clone(), room[1, :n].clone()))
    return made


def _match(keys: Tensor, base: Tensor, deltas: list[int]) -> list[tuple[Tensor, Tensor]]:
    made = []
    for delta in deltas:
        at = torch.searchsorted(keys, base + delta).clamp_(max=max(keys.shape[0] - 1, 0))
        hit = (keys[at] == base + delta).nonzero().squeeze(1) if keys.shape[0] else at[:0]
        made.append((at[hit], hit))
    return made


def _map(ptr: Tensor, source: Tensor, target: Tensor) -> tuple[int, ...]:
    n = source.shape[0]
    return (
        address(ptr, (ptr.shape[0],), _INDEX),
        address(source, (n,), _INDEX),
        address(target, (n,), _INDEX),
    )


def _ranges(ptr: Tensor) -> list[tuple[int, int]]:
    at = ptr.tolist()
    return list(pairwise(at))
