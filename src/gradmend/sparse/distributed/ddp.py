"""Sparse gradients under DDP, summed by a way of our own.

gloo's allreduce of sparse tensors writes past its buffers now and then when a model has two or more tables with sparse
gradients, also without Gradmend: "malloc(): unaligned tcache chunk", "double free". Gathering their rows does not.
"""

# No lazy annotations: DDP looks at those of a hook.
import torch
import torch.distributed as dist
from torch import Tensor


def sparse_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """For `ddp.register_comm_hook(None, sparse_hook)`: the mean of the ranks' gradients, dense and sparse ones.

    The first argument is the process group, None for all ranks.
    """
    gradient = bucket.buffer()
    ranks = dist.get_world_size(group)
    if gradient.is_sparse:
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(summed(gradient, group) / ranks)
        return done
    work = dist.all_reduce(gradient.div_(ranks), group=group, async_op=True)
    assert work is not None
    return work.get_future().then(lambda found: found.value()[0])


def summed(gradient: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum of all ranks' sparse gradients, by gathering their rows."""
    gradient = gradient.coalesce()
    mine = torch.tensor([gradient._nnz()], device=gradient.device)
    counts = [torch.zeros_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, mine, group=group)
    entries = [int(count) for count in counts]
    indices = _gathered(gradient.indices().t(), entries, group)
    values = _gathered(gradient.values(), entries, group)
    return torch.sparse_coo_tensor(indices.t(), values, gradient.shape, check_invariants=False).coalesce()


def _gathered(rows: Tensor, entries: list[int], group: dist.ProcessGroup | None) -> Tensor:
    """The rows of all ranks below each other; each rank sends as many as the one with the most."""
    padded = rows.new_zeros(max(entries), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in entries]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:count] for part, count in zip(parts, entries, strict=True)])
