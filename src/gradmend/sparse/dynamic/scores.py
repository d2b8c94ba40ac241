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


class Watcher:
    """Keeps what a layer was given and the gradient of what it returned, while armed."""

    def __init__(self, layer: nn.Module) -> None:
        if not isinstance(layer, SparseLinear | SparseConv2d) or (
            isinstance(layer, SparseConv2d) and layer.groups != 1
        ):
            raise SparseError(
                f"the gradient of a whole {type(layer).__name__} is not known how to be made in blocks: RigL takes "
                f"SparseLinear, and SparseConv2d without groups. SET takes any."
            )
        self.layer, self.armed = layer, False
        self.seen: list[tuple[Tensor, Tensor]] = []
        self._handle = layer.register_forward_hook(self._forward)

    def _forward(self, layer: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        if not self.armed or not out.requires_grad:
            return
        x = args[0].detach()
        out.register_hook(lambda grad: self.seen.append((x, grad.detach())))

    def remove(self) -> None:
        self._handle.remove()

    def take(self) -> list[tuple[Tensor, Tensor]]:
        """[(inputs [n, in], gradients [n, out])], and forgets them."""
        found, self.seen = self.seen, []
        if isinstance(self.layer, SparseConv2d):
            return [self._of_images(x, g) for x, g in found]
        return [(x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])) for x, g in found]

    def _of_images(self, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(self.layer, SparseConv2d)
        if x.dim() == 3:
            x, grad = x[None], grad[None]
        return self.layer._windows(x).flatten(0, 2).flatten(1).t(), grad.transpose(0, 1).flatten(1).t()


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
    if not pairs:
        raise SparseError(
            "no gradient was seen for a layer that is to grow: call backward() before the scheduler's step()."
        )
    device = pairs[0][0].device
    keys = taken.to(device)
    best, where = torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device)
    step = max(_BLOCK // max(cols, 1), 1)
    for low in range(0, rows, step):
        high = min(low + step, rows)
        block = sum(g[:, low:high].float().t() @ x.float() for x, g in pairs)
        assert isinstance(block, Tensor)
        if group is not None:
            torch.distributed.all_reduce(block, group=group)
        score = block.abs_().flatten()
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
