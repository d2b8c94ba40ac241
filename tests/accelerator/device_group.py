"""A process group like "nccl": it sends tensors of the walled device, and has no backend for the CPU."""

from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

NAME = "wall"


def _done(result: Any) -> dist.Work:
    future: Future[Any] = Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future)


class DeviceGroup(dist.ProcessGroup):
    """Sends by gloo what it has copied to the CPU."""

    def __init__(self, store: Any, rank: int, size: int, timeout: datetime.timedelta) -> None:
        super().__init__(rank, size)
        self._device = torch.device("walled")
        self._inner = dist.ProcessGroupGloo(store, rank, size, timeout)

    @property
    def _device_types(self) -> list[torch.device]:
        return [self._device]

    def getBackendName(self) -> str:
        return NAME

    @property
    def group_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    def _here(self, *tensors: Tensor) -> list[Tensor]:
        for t in tensors:
            if t.device.type != self._device.type:
                raise RuntimeError(f"No backend type associated with device type {t.device.type}")
        return [t.cpu() for t in tensors]

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        (mine,), (every,) = self._here(*inputs), outputs
        found = [torch.empty_like(mine) for _ in every]
        self._inner.allgather([found], [mine]).wait()
        for out, one in zip(every, found, strict=True):
            out.copy_(one)
        return _done(outputs)

    def _allgather_base(self, output: Tensor, given: Tensor, opts: Any = None) -> dist.Work:
        parts = list(output.chunk(self.size()))
        self.allgather([parts], [given])
        return _done(output)

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        found = self._here(*tensors)
        self._inner.allreduce(found, opts if opts is not None else dist.AllreduceOptions()).wait()
        for out, one in zip(tensors, found, strict=True):
            out.copy_(one)
        return _done(tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:
        found = self._here(*tensors)
        self._inner.broadcast(found, opts if opts is not None else dist.BroadcastOptions()).wait()
        for out, one in zip(tensors, found, strict=True):
            out.copy_(one)
        return _done(tensors)

    def alltoall_base(self, output: Tensor, given: Tensor, to: Any, of: Any, opts: Any = None) -> dist.Work:
        found, sent = self._here(output, given)
        self._inner.alltoall_base(found, sent, to, of).wait()
        output.copy_(found)
        return _done(output)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        every = outputs[0] if outputs else [torch.empty_like(inputs[0]) for _ in range(self.size())]
        return self.allgather([every], inputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        (mine,) = self._here(*outputs)
        given = [self._here(*inputs[0])] if inputs else []
        self._inner.scatter([mine], given, opts).wait()
        outputs[0].copy_(mine)
        return _done(outputs)

    def barrier(self, opts: Any = None) -> dist.Work:
        self._inner.barrier().wait()
        return _done(None)


def register() -> None:
    from torch.distributed.checkpoint import filesystem

    # The device has no streams and no pinned memory, by which checkpoints are otherwise written while they are copied.
    plain: Any = filesystem._SerialCpuLoader
    filesystem._OverlappingCpuLoader = lambda resolve, **options: plain(resolve)  # type: ignore
    dist.Backend.register_backend(
        NAME, lambda store, rank, size, timeout: DeviceGroup(store, rank, size, timeout), devices=["walled"]
    )
