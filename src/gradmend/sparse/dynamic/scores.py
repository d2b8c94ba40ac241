"""The strongest entries of a dense gradient that is never built: its rows are made in blocks, and the best kept."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from gradmend.sparse.errors import SparseError
from gradmend.sparse.nn.conv import SparseConv2d
from gradmend.sparse.nn.linear import SparseLinear

_BLOCK = 1 << 22  # numbers of a block
_SAMPLE = 1 << 14


def check_layers(layers: list[nn.Module]) -> None:
    """All layers of a weight are such that the gradient of the whole of it can be made in blocks."""
    for layer in layers:
        if not isinstance(layer, SparseLinear | SparseConv2d) or (
            isinstance(layer, SparseConv2d) and layer.groups != 1
        ):
            raise SparseError(
                f"the gradient of a whole {type(layer).__name__} is not known how to be made in blocks: RigL takes "
                f"SparseLinear, and SparseConv2d without groups. SET takes any."
            )


class Watcher:
    """Keeps what the layers of a weight were given and the gradients of what they returned, while armed."""

    def __init__(self, layers: list[nn.Module]) -> None:
        self.layers, self.armed = layers, False
        self.seen: list[tuple[nn.Module, Tensor, Tensor]] = []
        self._handles = [layer.register_forward_hook(self._forward, with_kwargs=True) for layer in layers]

    def _forward(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if not self.armed or not isinstance(out, Tensor) or not out.requires_grad:
            return
        # Copies: the program may fill its buffers anew before the scheduler's step.
        x = next(iter((*args, *kwargs.values()))).detach().clone()
        out.register_hook(lambda grad: self.seen.append((layer, x, grad.detach().clone())))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """[(inputs [n, in], gradients [n, out])]."""
        check_layers(self.layers)
        return [
            _of_images(layer, x, g)
            if isinstance(layer, SparseConv2d)
            else (x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1]))
            for layer, x, g in self.seen
        ]


def _of_images(layer: SparseConv2d, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    if x.dim() == 3:
        x, grad = x[None], grad[None]
    return layer._windows(x).flatten(0, 2).flatten(1).t(), grad.transpose(0, 1).flatten(1).t()


def seen_by_all(
    pairs: list[tuple[Tensor, Tensor]], values: Tensor, size: tuple[int, ...], group: Any
) -> list[tuple[Tensor, Tensor]]:
    """The pairs, or an error on all ranks: a rank that has not used the layer adds nothing to what the others saw."""
    seen = torch.tensor([len(pairs)], device=values.device)
    if group is not None:
        torch.distributed.all_reduce(seen, group=group)
    if not int(seen):
        raise SparseError(
            "no gradient was seen for a layer that is to grow: call backward() before the scheduler's step()."
        )
    return pairs or [(values.new_zeros(0, size[1]), values.new_zeros(0, size[0]))]


def top(score: Tensor, count: int) -> Tensor:
    """Where the `count` largest are. A sample tells what most are below; torch's topk of all takes five times as long."""
    n = score.numel()
    if n < _SAMPLE * 4 or count * 8 > n:
        return score.topk(count, sorted=False).indices
    sample = score[:: n // _SAMPLE]
    wanted = min(int(1.3 * sample.numel() * count / n) + 16, sample.numel())
    good = (score >= sample.topk(wanted, sorted=False).values.min()).nonzero().squeeze(1)
    if good.numel() < count:  # the sample was unlucky
        return score.topk(count, sorted=False).indices
    return good[score[good].topk(count, sorted=False).indices]


@torch.no_grad()
def strongest(
    pairs: list[tuple[Tensor, Tensor]], taken: Tensor, size: tuple[int, ...], count: int, group: Any = None
) -> Tensor:
    """Row-major numbers of the `count` largest entries of |sum of gradient^T inputs| that are not among `taken`.

    `taken` ascends. With a process group the gradient is that of all ranks together.
    """
    rows, cols = size
    if rows * cols - taken.shape[0] < count:
        raise SparseError(f"{count} entries can't grow in a weight of {size} with {taken.shape[0]} entries.")
    device = pairs[0][0].device
    keys = taken.to(device)
    best, where = torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device)
    step = max(_BLOCK // max(cols, 1), 1)
    for low in range(0, rows, step):
        high = min(low + step, rows)
        block = sum(_wide(g[:, low:high]).t() @ _wide(x).conj() for x, g in pairs)
        assert isinstance(block, Tensor)
        if group is not None:
            torch.distributed.all_reduce(block, group=group)
        score = block.abs().flatten()
        a, b = torch.searchsorted(keys, torch.tensor([low * cols, high * cols], device=device)).tolist()
        score[keys[a:b] - low * cols] = -math.inf
        if best.numel() >= count > 0:  # what is below the worst of the best can't be among them
            good = (score > best.min()).nonzero().squeeze(1)
        else:
            good = top(score, min(count, score.numel()))
        best = torch.cat([best, score[good]])
        where = torch.cat([where, good + low * cols])
        if best.numel() > count:
            kept = best.topk(count, sorted=False).indices
            best, where = best[kept], where[kept]
    return where


def _wide(t: Tensor) -> Tensor:
    """Sums are kept in float32 at least."""
    return t.to(torch.complex64) if t.is_complex() else t.float()
