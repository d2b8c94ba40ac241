"""How often the host waits for the device: reads of device memory in a step, counted on the walled device.

    python benchmarks/syncs.py

`reads` are numbers that the host asks for (`item`, `tolist`, `equal`, copies to the CPU); `shapes` are operations whose
result has a shape that depends on numbers (`nonzero`, `unique`): on CUDA both stop the host until the device is done.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "accelerator"))

_READS = {"_local_scalar_dense", "equal", "item", "is_nonzero"}
_COPIES = {"_to_copy", "copy_", "_copy_from"}
_SHAPES = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave"}
Step = Callable[[], Any]


class Syncs(TorchDispatchMode):
    """Counts what stops the host."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.shapes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = func._schema.name.removeprefix("aten::"), kwargs or {}
        out = func(*args, **given)
        tensors = [a for a in args if isinstance(a, Tensor)]
        if not any(_far(t) for t in tensors):
            return out
        if name in _READS or (name in _COPIES and isinstance(out, Tensor) and not _far(out)):
            self.reads[name] += 1
        elif name in _SHAPES and given.get("output_size") is None:
            self.shapes[name] += 1
        return out


def _far(t: Tensor) -> bool:
    return t.device.type not in ("cpu", "meta")


def counted(step: Step) -> Syncs:
    """The second of two steps: the first builds what is kept."""
    step()
    with Syncs() as found:
        step()
    return found


def _lookups(D: Any) -> dict[str, Step]:
    from gradmend.sparse.nn import SparseEmbedding, SparseEmbeddingBag

    ids = torch.randint(1000, (64,)).to(D)
    offsets = torch.arange(0, 64, 8).to(D)
    table, bag = SparseEmbedding(1000, 16).to(D), SparseEmbeddingBag(1000, 16).to(D)
    return {
        "look-up, backward": lambda: table(ids).sum().backward(),
        "bag of (bags, n), backward": lambda: bag(ids.view(8, 8)).sum().backward(),
        "bag with offsets, backward": lambda: bag(ids, offsets).sum().backward(),
    }


def _optimizers(D: Any) -> dict[str, Step]:
    from gradmend.sparse import optim
    from gradmend.sparse.nn import SparseEmbedding

    kinds = (optim.RowAdam, optim.RowAdamW, optim.RowAdagrad, optim.RowSGD, torch.optim.SparseAdam)

    def steps(kind: Any) -> Step:
        tables = torch.nn.ModuleList([SparseEmbedding(1000, 16) for _ in range(26)]).to(D)
        optimizer = kind(tables.parameters(), lr=0.1)
        for table in tables:
            table(torch.randint(1000, (64,)).to(D)).sum().backward()
        return lambda: optimizer.step()

    return {f"{kind.__name__}, a step of 26 tables": steps(kind) for kind in kinds}


def _operations(D: Any) -> dict[str, Step]:
    from gradmend.sparse import Pattern, SparseTensor, sddmm
    from gradmend.sparse.nn import GraphConv, SparseLinear

    P = Pattern.random((400, 300), density=0.2).to(D).prepare()
    v, X = torch.randn(P.nnz).to(D).requires_grad_(), torch.randn(300, 8).to(D).requires_grad_()
    Y = torch.randn(8, 400).to(D)
    square = SparseTensor(Pattern.random((300, 300), density=0.05).to(D), torch.ones(4500).to(D))
    conv, linear = GraphConv(8, 8).to(D), SparseLinear(400, 300, 0.2).to(D)

    def S() -> SparseTensor:
        return SparseTensor(P, v)

    parts = (P.ptr, P.col, *P.transposed())
    steps: dict[str, Step] = {
        "S @ X": lambda: S() @ X,
        "X @ S": lambda: Y @ S(),
        "sddmm": lambda: sddmm(P, Y.t(), X.t()).values(),
        "S * 2 + S": lambda: (S() * 2 + S()).values(),
        "propagate max": lambda: S().propagate(X, "max"),
        "GraphConv": lambda: conv(square, X),
        "SparseLinear": lambda: linear(Y),
        "to_dense": lambda: S().to_dense(),
        "S @ X in a compiled graph": lambda: torch.ops.gradmend.spmm(*parts, v, X, False),
    }
    for name in ("sum", "mean", "amax", "var", "logsumexp", "softmax", "log_softmax"):
        for dim in (0, 1):
            steps[f"{name}({dim})"] = lambda name=name, dim=dim: _values(getattr(S(), name)(dim))
    return {f"{name}, backward": (lambda f=f: f().sum().backward()) for name, f in steps.items()}


def _values(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else x.values()


def _others(D: Any) -> dict[str, Step]:
    """Where the host must know how much goes where."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from gradmend.sparse.distributed import ShardedEmbedding
    from gradmend.sparse.nn import SparseFeatureMap, SubmanifoldConv3d

    dist.init_process_group(f"cpu:fake,{D.type}:fake", store=FakeStore(), rank=0, world_size=1)
    table, ids = ShardedEmbedding(1000, 16, init_device_mesh(D.type, (1,))), torch.randint(1000, (64,)).to(D)
    points = (
        torch.cat([torch.zeros(200, 1, dtype=torch.long), torch.randint(16, (200, 3))], 1).unique(dim=0).to(D)
    )
    conv, features = SubmanifoldConv3d(4, 8).to(D), torch.randn(points.shape[0], 4).to(D)

    def cloud() -> None:
        conv(SparseFeatureMap.from_points(points, features, space=(16, 16, 16))).features.sum().backward()

    return {
        "sharded look-up, backward": lambda: table(ids).sum().backward(),
        "convolution on a new cloud, backward": cloud,
    }


def measured() -> dict[str, Syncs]:
    import walled

    D = walled.register()
    return {
        name: counted(step)
        for steps in (_optimizers(D), _lookups(D), _operations(D), _others(D))
        for name, step in steps.items()
    }


def main() -> None:
    print("| | reads | shapes |\n|---|--:|--:|")
    for name, found in measured().items():
        print(f"| {name} | {found.reads.total()} | {found.shapes.total()} |")


if __name__ == "__main__":
    main()
