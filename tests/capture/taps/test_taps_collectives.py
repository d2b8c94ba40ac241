"""torch.distributed writes into tensors in C++, and steps no version counter (gloo, torch 2.13)."""

import pytest
import torch
import torch.distributed as dist
from kept import line_of, written_while_kept

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")


@pytest.fixture(scope="module", autouse=True)
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def ones():
    return torch.ones(4, dtype=torch.float64)


def _all_gather(t):
    dist.all_gather([t], ones() * 2)  # here


def _all_gather_keyword(t):
    dist.all_gather(tensor_list=[t], tensor=ones() * 2)  # here


def _all_gather_into_tensor(t):
    dist.all_gather_into_tensor(t, ones() * 2)  # here


def _gather(t):
    dist.gather(ones() * 2, [t])  # here


def _scatter(t):
    dist.scatter(t, [ones() * 2])  # here


def _reduce_scatter(t):
    dist.reduce_scatter(t, [ones() * 2])  # here


def _all_to_all_single(t):
    dist.all_to_all_single(t, ones() * 2)  # here


def _asynchronous(t):
    dist.all_gather([t], ones() * 2, async_op=True).wait()  # here


@pytest.mark.parametrize(
    "write",
    [
        _all_gather,
        _all_gather_keyword,
        _all_gather_into_tensor,
        _gather,
        _scatter,
        _reduce_scatter,
        _all_to_all_single,
        _asynchronous,
    ],
)
def test_collective(write):
    t = ones()
    conflict, _, changed = written_while_kept(t, write)
    assert changed, "with one process this collective writes nothing: no test"
    assert conflict is not None
    assert conflict.writes[0].op.startswith("dist.")
    assert (conflict.culprits[0].file, conflict.culprits[0].line) == (__file__, line_of(write))


def _all_reduce(t):
    dist.all_reduce(t, op=dist.ReduceOp.SUM)  # here


def test_a_sum_over_one_process_changes_nothing():
    conflict, _, changed = written_while_kept(ones(), _all_reduce)
    assert conflict is None and not changed


@pytest.mark.parametrize(
    "name", ["all_reduce", "broadcast", "reduce", "all_gather", "recv", "irecv", "scatter"]
)
def test_both_homes_are_tapped(name):
    import torch.distributed.distributed_c10d as c10d

    import gradmend

    with gradmend.watch():
        assert hasattr(getattr(dist, name), "__gradmend_original__")
        assert hasattr(getattr(c10d, name), "__gradmend_original__")
    assert not hasattr(getattr(dist, name), "__gradmend_original__")
