"""Threads and processes: the same bits whoever works, and no forked child hangs."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gradmend.sparse.kernels import matmul, team

CROW = torch.arange(0, 40001, 20)
COL = (torch.arange(40000) * 7919) % 2000
VALUES = torch.randn(40000, generator=torch.Generator().manual_seed(0))
X = torch.randn(2000, 32, generator=torch.Generator().manual_seed(1))


def product() -> Tensor:
    return matmul.spmm(CROW, COL, VALUES, X)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _child(queue: multiprocessing.Queue[list[float]]) -> None:
    # Only our kernel: torch's own parallel ops hang in a forked child once OpenMP has run in the parent.
    queue.put(product().flatten().tolist() if team._forked else [])


@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_is_torchs_at_each_call() -> None:
    several, used = product(), team._pool_size
    assert used >= 1
    torch.set_num_threads(1)
    seen: list[int] = []
    team.run(lambda part, parts: seen.append(parts), team.ALONE)
    assert seen == [1]
    assert torch.equal(product(), several)


@pytest.mark.usefixtures("two_threads")
def test_small_work_stays_on_this_thread() -> None:
    seen: list[str] = []
    team.run(lambda part, parts: seen.append(threading.current_thread().name), team.ALONE - 1)
    assert seen == [threading.current_thread().name]


@pytest.mark.usefixtures("two_threads")
def test_every_part_runs_once() -> None:
    seen: list[tuple[int, int]] = []
    team.run(lambda part, parts: seen.append((part, parts)), team.ALONE)
    assert sorted(seen) == [(i, 16) for i in range(16)]


@pytest.mark.usefixtures("two_threads")
def test_an_error_on_a_helper_thread_is_not_swallowed() -> None:
    def fail(part: int, parts: int) -> None:
        raise ValueError("bad part")

    with pytest.raises(ValueError, match="bad part"):
        team.run(fail, team.ALONE)


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork here")
@pytest.mark.usefixtures("two_threads")
def test_a_forked_child_works_alone() -> None:
    want = product().flatten().tolist()  # the pool is up before the fork
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context = multiprocessing.get_context("fork")
        queue: multiprocessing.Queue[list[float]] = context.Queue()
        child = context.Process(target=_child, args=(queue,))
        child.start()
        assert queue.get(timeout=60) == want
        child.join(60)
    assert child.exitcode == 0 and not team._forked


@pytest.mark.usefixtures("two_threads")
def test_many_threads_may_call_at_once() -> None:
    want, got = product(), [torch.empty(0)] * 8

    def work(i: int) -> None:
        got[i] = product()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(torch.equal(g, want) for g in got)


def test_importing_the_kernels_does_not_import_numba() -> None:
    code = (
        "import sys, gradmend.sparse.kernels; sys.exit('numba' in sys.modules or 'llvmlite' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


FORKED = """
import os, sys, torch
from gradmend.sparse import SparseTensor
torch.set_num_threads(2)
torch.randn(800, 800) @ torch.randn(800, 800)  # OpenMP's threads are there, and do not come along
S = SparseTensor.from_coo([[2, 0, 1], [0, 1, 2]], torch.ones(3), (3, 3))
want = S @ torch.ones(3, 2)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(S @ torch.ones(3, 2), want) else 1)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_small_product_in_a_forked_child_does_not_hang() -> None:
    """torch's embedding_bag wakes OpenMP's threads for any length, and waits for ever where there are none."""
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", FORKED], env=env, timeout=120, check=False)
    assert done.returncode == 0


@pytest.mark.usefixtures("two_threads")
def test_a_helper_that_never_got_a_core_is_not_waited_for() -> None:
    """On a busy machine it may be long until it runs, and all shares are done by then."""
    several, free = product(), threading.Event()
    held = [team._helpers(1).submit(free.wait, 60) for _ in range(team._pool_size)]
    try:
        done: list[Tensor] = []
        worker = threading.Thread(target=lambda: done.append(product()))
        worker.start()
        worker.join(20)
        assert done and not any(h.done() for h in held)
        assert torch.equal(done[0], several)
    finally:
        free.set()
    for h in held:
        assert h.result()
    assert torch.equal(product(), several)
