"""What the training steps are to reach, and the bound that no step on random rows gets below."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

BOUND = "bound: rows read and written once"


class Target(NamedTuple):
    row: str
    peer: str
    factor: float  # the peer takes at least so many times as long as we do
    why: str


DENSE, SPARSEPROP, SPARSELAB = "dense nn.Linear", "sparseprop", "sparselab"
TARGETS = [
    Target("bag", "embedding_bag + SparseAdam", 10, "bag of words, Adam: 10x SparseAdam"),
    Target("bag_step", "embedding_bag + SparseAdam", 10, "its step alone: 10x SparseAdam"),
    Target("table_adam", "torch SparseAdam", 3, "10M rows, Adam, end to end: 3x SparseAdam"),
    Target("table_adam", BOUND, 1 / 3, "10M rows, Adam: within 3x of the random-row traffic"),
    Target("conv3d", "gather, mm and index_add", 2, "50,000 points: 2x gather and index_add"),
    Target("conv3d_1", "dense conv3d", 10, "1% occupied: 10x dense"),
    *(
        Target(row, peer, 1, f"linear: ahead of {peer}")
        for row in ("linear10", "linear5", "linear1")
        for peer in (DENSE, SPARSEPROP, SPARSELAB)
    ),
]


def told(row: str, ratios: dict[str, float], skipped: dict[str, str]) -> list[str]:
    """A line for each target of a row; a ratio is the peer's time in multiples of ours."""
    lines = []
    for target in TARGETS:
        if target.row != row:
            continue
        if target.peer not in ratios:
            lines.append(
                f"target: {target.why}: not measured ({skipped.get(target.peer, 'not in this run')})"
            )
            continue
        ratio = ratios[target.peer]
        said = "reached" if ratio >= target.factor else "NOT REACHED"
        found = f"{ratio:.2f}x" if target.factor >= 1 else f"{1 / ratio:.2f}x the bound"
        lines.append(f"target: {target.why}: {found}, {said}")
    return lines


def mover(batches: list[Tensor], tables: list[Tensor]) -> Callable[[], Any]:
    """Least traffic of a look-up and an Adam step: the rows looked up are read and written as a result; each row
    touched is read and written once in every table. Nothing is computed; as many threads as ours."""
    from gradmend.sparse.kernels.checks import address
    from gradmend.sparse.kernels.compiled import kept_on_disk
    from gradmend.sparse.kernels.lanes import get, load, prefetch, store
    from gradmend.sparse.kernels.team import run

    width = tables[0].shape[1]
    ahead = 16

    @kept_on_disk
    def move(rows, source, target, spread, n, part, parts):  # type: ignore[no-untyped-def]
        for i in range(n * part // parts, n * (part + 1) // parts):
            if i + ahead < n:
                prefetch("f32", width, source, get("i64", rows, i + ahead) * width)
            at = get("i64", rows, i) * width
            row = load("f32", width, width, source, at, width)
            store("f32", width, width, row, target, i * width if spread else at, width)

    work = [(ids, ids.unique(), torch.empty(ids.shape[0], width)) for ids in batches]
    turn = [0]

    def step() -> None:
        turn[0] += 1
        ids, rows, out = work[turn[0] % len(work)]
        size = (tables[0].shape[0], width)
        places = address(ids, (ids.shape[0],), torch.int64)
        first = address(tables[0], size, torch.float32)
        held = address(out, (ids.shape[0], width), torch.float32)
        run(move, ids.numel() * width, places, first, held, True, ids.shape[0])
        for table in tables:
            place = address(table, size, torch.float32)
            run(
                move,
                rows.numel() * width,
                address(rows, (rows.shape[0],), torch.int64),
                place,
                place,
                False,
                rows.shape[0],
            )

    return step
