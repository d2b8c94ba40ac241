"""What backward reads: the committed table against the graphs of the installed torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradmend.capture.graph import reads
from gradmend.capture.graph.nodes import walk
from gradmend.capture.graph.reads import is_read, packed, slot_of
from gradmend.story.knowledge._entries import at_node

TOOLS = Path(__file__).parents[3] / "tools"


class Handle:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()


class Asked:
    """Runs fn under hooks, then backward; what was asked for, by slot, and the gradients with some slots ruined."""

    def __init__(self, fn: Callable[[], Any], leaves: list[torch.Tensor]) -> None:
        self.leaves = leaves
        self.slots: dict[str, bool] = {}
        self.ruin: Callable[[Any, str], bool] = lambda node, slot: False
        with torch.autograd.graph.saved_tensors_hooks(Handle, self._unpack):
            out = fn()
        self.out = next(o for o in (out if isinstance(out, tuple) else (out,)) if o.requires_grad)
        torch.manual_seed(0)
        self.cotangent = torch.randn_like(self.out)

    def _unpack(self, handle: Handle) -> torch.Tensor:
        node = torch._C._current_autograd_node()
        slot = slot_of(node, handle)
        assert slot is not None, node.name()
        name = f"{node.name()}.{slot}"
        self.slots[name] = is_read(node, slot)
        if not self.ruin(node, slot):
            return handle.tensor
        t = handle.tensor
        return torch.full_like(t, float("nan")) if t.is_floating_point() else torch.zeros_like(t)

    def gradients(self, ruin: Callable[[Any, str], bool] = lambda node, slot: False) -> list[Any]:
        self.ruin = ruin
        return list(
            torch.autograd.grad(self.out, self.leaves, self.cotangent, retain_graph=True, allow_unused=True)
        )


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64).add(0.1).requires_grad_()


def const(*shape: int) -> torch.Tensor:
    return rand(*shape).detach()


INDEX = torch.tensor([2, 0, 1])
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nll_loss": lambda x: F.nll_loss(x, INDEX),
    "cross_entropy": lambda x: F.cross_entropy(x, INDEX),
    "max_pool2d": lambda x: F.max_pool2d(x.view(1, 1, 3, 3), 2, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x.view(1, 1, 3, 3), 2, 1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x.view(1, 1, 3, 3), 2),
    "reflection pad": lambda x: F.pad(x, (1, 1), mode="reflect"),
    "gather": lambda x: x.gather(1, INDEX.view(3, 1)),
    "take": lambda x: x.take(INDEX),
    "masked_select": lambda x: x.masked_select(x > 0.5),
    "index_add": lambda x: torch.zeros(3, 3, dtype=x.dtype).index_add(0, INDEX, x),
    "index_copy": lambda x: torch.zeros(3, 3, dtype=x.dtype).index_copy(0, INDEX, x),
    "put": lambda x: torch.zeros(9, dtype=x.dtype).put(torch.arange(9).view(3, 3), x),
    "batch_norm train": lambda x: F.batch_norm(x, const(3), const(3), const(3), const(3), training=True),
    "batch_norm eval": lambda x: F.batch_norm(x, const(3), const(3), const(3), const(3), training=False),
    "layer_norm": lambda x: F.layer_norm(x, (3,), const(3), const(3)),
    "conv2d, frozen": lambda x: F.conv2d(x.view(1, 1, 3, 3), const(1, 1, 2, 2)),
    "cummax": lambda x: x.cummax(0)[0],
    "scatter_reduce mean": lambda x: x.scatter_reduce(0, INDEX.view(1, 3), x[:1] * 2, "mean"),
    "cdist, p=1": lambda x: torch.cdist(x, const(3, 3), p=1.0),
    "vector_norm, ord=1": lambda x: torch.linalg.vector_norm(x, 1),
    "slogdet": lambda x: torch.linalg.slogdet(x)[1],
    "eigvalsh": lambda x: torch.linalg.eigvalsh(x),
    "svdvals": lambda x: torch.linalg.svdvals(x),
    "lstsq": lambda x: torch.linalg.lstsq(x, const(3, 3))[0],
    "mean of var_mean": lambda x: torch.var_mean(x, 0)[1],
    "grid_sample, nearest": lambda x: F.grid_sample(
        x.view(1, 1, 3, 3), x[None, :, :2, None].expand(1, 3, 2, 2), mode="nearest", align_corners=False
    ),
}  # fmt: skip


# Kernels that refuse what they read when it is ruined: pivots of zero, a matrix of NaN.
REFUSED = {"slogdet": "Pivots", "lstsq": "non-finite"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_ruining_what_is_not_read_changes_nothing_and_what_is_read_does(name: str) -> None:
    torch.manual_seed(1)
    x = rand(3, 3)
    asked = Asked(lambda: PROGRAMS[name](x), [x])
    want = asked.gradients()
    assert not all(asked.slots.values()), f"the table knows no unread slot of {name}"
    got = asked.gradients(lambda node, slot: not is_read(node, slot))
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    if name in REFUSED:
        with pytest.raises(RuntimeError, match=REFUSED[name]):
            asked.gradients(lambda node, slot: is_read(node, slot))
    elif any(asked.slots.values()):
        ruined = asked.gradients(lambda node, slot: is_read(node, slot))
        assert not torch.equal(ruined[0], want[0])


@pytest.mark.parametrize(("training", "read"), [(True, False), (False, True)])
def test_running_statistics_are_read_in_eval_mode_alone(training: bool, read: bool) -> None:
    norm = nn.BatchNorm1d(3).train(training).double()
    x = rand(5, 3)
    asked = Asked(lambda: norm(x), [x, *norm.parameters()])
    asked.gradients()
    assert asked.slots["NativeBatchNormBackward0.running_mean"] is read
    assert asked.slots["NativeBatchNormBackward0.running_var"] is read
    assert asked.slots["NativeBatchNormBackward0.input"] is True


def test_a_trained_convolution_reads_its_input_a_frozen_one_does_not() -> None:
    for trained in (True, False):
        conv = nn.Conv1d(1, 1, 2).double().requires_grad_(trained)
        x = rand(1, 1, 5)
        asked = Asked(lambda conv=conv, x=x: conv(x), [x, *(p for p in conv.parameters() if trained)])
        asked.gradients()
        assert asked.slots["ConvolutionBackward0.input"] is trained
        assert asked.slots["ConvolutionBackward0.weight"] is True


# Reads that depend on values, so that a careless measurement misses them.
@pytest.mark.parametrize(
    ("fn", "slot"),
    [
        (lambda x, c: torch.xlogy(c, x), "XlogyBackward0.self"),
        (lambda x, c: torch.nextafter(x, c), "NextafterBackward0.other"),
        (lambda x, c: c**x, "PowBackward1.exponent"),
        (lambda x, c: F.rrelu(x, 0.2, 0.2, training=True), "RreluWithNoiseBackward0.self"),
        (lambda x, c: x.put(torch.tensor([0]), c[0, :1]), "PutBackward0.index"),
        (lambda x, c: x.cumprod(0), "CumprodBackward0.result"),
        (lambda x, c: torch.linalg.lstsq(x[:, :2], c)[1], "LinalgLstsqBackward0.solution"),
    ],
)
def test_reads_that_only_some_values_show_count_as_reads(fn: Any, slot: str) -> None:
    x = rand(3, 3)
    asked = Asked(lambda: fn(x, const(3, 3)), [x])
    asked.gradients()
    assert asked.slots[slot] is True


# The same node reads the same slot when a flag, a dtype or the gradients that arrive are others.
@pytest.mark.parametrize(
    ("fn", "slot"),
    [
        (lambda x: x.scatter_reduce(0, INDEX.view(1, 3), x[:1] * 2, "amax"), "ScatterReduceBackward0.result"),
        (lambda x: torch.cdist(x, const(3, 3), p=2.0), "CdistBackward0.result"),
        (lambda x: torch.linalg.vector_norm(x, 3), "LinalgVectorNormBackward0.result"),
        (lambda x: torch.linalg.slogdet(torch.complex(x, x.sin()))[0], "LinalgSlogdetBackward0.sign"),
        (lambda x: torch.complex(x, x.sin()).sgn().abs(), "SgnBackward0.self"),
        (lambda x: torch.complex(x, x.sin()).angle(), "AngleBackward0.self"),
        (lambda x: torch.linalg.eigh(x + x.mT)[1].abs(), "LinalgEighBackward0.eigenvalues"),
        (
            lambda x: sum(t.abs().sum() for t in torch.linalg.eigh(x + x.mT)),
            "LinalgEighBackward0.eigenvalues",
        ),
        (lambda x: torch.linalg.svd(x)[0].abs(), "LinalgSvdBackward0.S"),
        (lambda x: torch.var_mean(x, 0)[0], "VarMeanBackward0.self"),
    ],
)
def test_conditions_do_not_reach_too_far(fn: Any, slot: str) -> None:
    x = rand(3, 3)
    asked = Asked(lambda: fn(x), [x])
    want = asked.gradients()
    assert asked.slots[slot] is True
    ruined = asked.gradients(lambda node, name: f"{node.name()}.{name}" == slot)
    assert not torch.equal(ruined[0], want[0])


@pytest.mark.parametrize(
    ("fn", "slot"),
    [
        (lambda x: torch.div(x, const(3, 3) + x, rounding_mode="floor"), "DivBackward2.self"),
        (lambda x: x.sgn(), "SgnBackward0.self"),
        (lambda x: x.angle(), "AngleBackward0.self"),
        (lambda x: torch.cdist(x, x + 1, p=0.0), "CdistBackward0.x1"),
    ],
)
def test_gradients_that_are_always_zero_read_nothing(fn: Any, slot: str) -> None:
    x = rand(3, 3)
    asked = Asked(lambda: fn(x), [x])
    asked.gradients()
    if slot == "CdistBackward0.x1" and "x1" not in reads.table()["CdistBackward0"]:
        pytest.skip("this release computes with it (2.15 does)")
    assert asked.slots[slot] is False
    got = asked.gradients(lambda node, name: f"{node.name()}.{name}" == slot)
    assert torch.equal(got[0], torch.zeros_like(x))


def test_everything_else_is_read() -> None:
    y = rand(3).exp()
    assert is_read(y.grad_fn, "result")
    assert is_read(y.grad_fn, "no such slot")
    assert is_read(y.grad_fn, None)
    assert all("BatchNorm" in node for node in reads.table() if "BackwardBackward" in node)


def test_other_devices_trust_only_the_training_flag() -> None:
    pooled = F.max_pool2d(rand(1, 1, 3, 3), 2)
    assert not is_read(pooled.grad_fn, "self")
    assert is_read(pooled.grad_fn, "self", "mps")
    normed = nn.BatchNorm1d(3).double()(rand(5, 3))
    assert not is_read(normed.grad_fn, "running_mean", "cuda")


def test_on_another_release_only_running_statistics_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    reads.table.cache_clear()
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    try:
        known = {slot for slots in reads.table().values() for slot in slots}
    finally:
        reads.table.cache_clear()
    assert known == {"running_mean", "running_var"}


def test_every_entry_names_a_slot_that_its_node_keeps() -> None:
    for node, slots in reads.table().items():
        entry = at_node(node)
        assert entry is not None and set(slots) <= set(entry.keeps), node


AT = torch.tensor([[0, 1, 2], [0, 1, 2]])
ROWS, COLUMNS = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2])


def _coo(v: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(AT, v, (3, 3), check_invariants=False)


def _csr(v: torch.Tensor) -> torch.Tensor:
    return torch.sparse_csr_tensor(ROWS, COLUMNS, v, (3, 3), check_invariants=False)


SPARSE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": lambda v: _coo(v).to_dense(),
    "csr": lambda v: _csr(v).to_dense(),
    "values": lambda v: _csr(v).values() * 2,
    "mask": lambda v: torch.diag(v).sparse_mask(_coo(torch.ones(3).double()).coalesce()).to_dense(),
    "sum": lambda v: torch.sparse.sum(_coo(v), 0).to_dense(),
}


@pytest.mark.parametrize("name", SPARSE)
def test_values_may_change_where_only_the_places_are_read(name: str) -> None:
    def gradient(ruin: bool) -> tuple[torch.Tensor, int]:
        x, ruined = const(3).requires_grad_(), 0
        out = SPARSE[name](x * 1)
        for node, _ in walk([out.grad_fn]):
            for slot, _, _ in packed(node):
                if reads.reads_places_only(node, slot):
                    saved = getattr(node, f"_saved_{slot}").detach()
                    values = saved._values() if saved.layout is torch.sparse_coo else saved.values()
                    ruined += 1
                    if ruin:
                        values.data.fill_(7.7)
        out.pow(1).sum().backward()
        assert x.grad is not None
        return x.grad, ruined

    (want, _), (got, ruined) = gradient(False), gradient(True)
    assert ruined and torch.equal(got, want)


class TestSlotOf:
    def asked(self, fn: Callable[[], torch.Tensor]) -> list[tuple[str, str | None]]:
        found = []

        def unpack(handle: Handle) -> torch.Tensor:
            node = torch._C._current_autograd_node()
            found.append((node.name(), slot_of(node, handle)))
            return handle.tensor

        with torch.autograd.graph.saved_tensors_hooks(Handle, unpack):
            out = fn()
        out.sum().backward()
        return found

    def test_single_slots(self) -> None:
        x, y = rand(3), rand(3)
        assert self.asked(lambda: x * y) == [("MulBackward0", "other"), ("MulBackward0", "self")]

    def test_list_slots(self) -> None:
        assert self.asked(lambda: rand(3, 3)[INDEX, INDEX]) == [
            ("IndexBackward0", "indices[0]"),
            ("IndexBackward0", "indices[1]"),
        ]

    def test_list_slots_with_holes(self) -> None:
        assert self.asked(lambda: rand(3, 3)[:, INDEX]) == [("IndexBackward0", "indices[1]")]

    def test_optional_slots_that_are_empty(self) -> None:
        found = self.asked(lambda: F.batch_norm(rand(3, 3), None, None, training=True))
        assert ("NativeBatchNormBackward0", "input") in found and all(slot for _, slot in found)

    def test_custom_functions(self) -> None:
        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(x, y)
                return x * y

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> Any:
                x, y = ctx.saved_tensors
                return grad * y, grad * x

        x, y = rand(3), rand(3)
        assert self.asked(lambda: Product.apply(x, y)) == [
            ("ProductBackward", "tensors[0]"),
            ("ProductBackward", "tensors[1]"),
        ]

    def test_nodes_that_expose_nothing(self) -> None:
        x = rand(3)

        def filled() -> torch.Tensor:
            buffer = torch.zeros(3, dtype=torch.float64)
            buffer[:2].add_(x[:2]).mul_(x[1:])
            return buffer

        assert ("torch::autograd::CopySlices", None) in self.asked(filled)

    def test_a_handle_of_another_node(self) -> None:
        assert slot_of(rand(3).exp().grad_fn, object()) is None


@pytest.mark.skipif(not TOOLS.exists(), reason="not in a source tree")
class TestConclusions:
    """The generator draws no conclusion that an observation or the formula contradicts."""

    @pytest.fixture
    def tool(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.syspath_prepend(str(TOOLS))
        import make_reads

        yield make_reads
        for name in ("make_reads", "reads_observe", "reads_extra"):
            sys.modules.pop(name, None)

    def seen(
        self, node: str, slot: str, read: bool, twice: bool | None = False, **features: Any
    ) -> dict[str, Any]:
        return {
            "node": node, "slot": slot, "features": features, "arrived": [True], "zero": False,
            "read": read, "read_twice": twice,
        }  # fmt: skip

    def test_never_read(self, tool: Any) -> None:
        group = [self.seen("TakeBackward0", "self", False)] * 6
        assert tool.conclude(group) == {"TakeBackward0": {"self": "always"}}
        assert tool.conclude(group[:5]) == {}

    def test_one_read_is_enough(self, tool: Any) -> None:
        group = [self.seen("TakeBackward0", "self", i == 3) for i in range(50)]
        assert tool.conclude(group) == {}

    def test_read_by_double_backward(self, tool: Any) -> None:
        group = [self.seen("TakeBackward0", "self", False, twice=True)] * 9
        assert tool.conclude(group) == {"TakeBackward0": {"self": [{"grad_mode": False}]}}

    def test_conditions(self, tool: Any) -> None:
        node, slot = "NativeBatchNormBackward0", "running_var"
        group = [self.seen(node, slot, not t, training=t, other=t) for t in (True, False) for _ in range(6)]
        assert tool.conclude(group) == {node: {slot: [{"training": True}]}}

    def test_a_formula_that_computes_with_the_slot_is_believed(self, tool: Any) -> None:
        assert tool.conclude([self.seen("NextafterBackward0", "self", False)] * 99) == {}

    def test_several_output_gradients_were_not_all_seen(self, tool: Any) -> None:
        assert tool.conclude([self.seen("LinalgLstsqBackward0", "solution", False)] * 99) == {}

    def test_several_output_gradients_each_alone_and_together(self, tool: Any) -> None:
        node, slot = "LinalgLstsqBackward0", "solution"
        group = [
            {**self.seen(node, slot, came[1]), "arrived": list(came)}
            for came in ((True, False), (False, True), (True, True))
            for _ in range(6)
        ]
        assert tool.conclude(group) == {node: {slot: [{"arrives_1": False}]}}
        unread = [{**s, "read": False} for s in group]
        assert tool.conclude(unread) == {node: {slot: "always"}}
        assert tool.conclude([s for s in unread if s["arrived"] != [True, True]]) != {node: {slot: "always"}}

    def test_values_that_decide_and_values_that_part_by_chance(self, tool: Any) -> None:
        def group(node: str, slot: str, name: str) -> list[dict[str, Any]]:
            return [self.seen(node, slot, v == "b", **{name: v}) for v in "ab" for _ in range(6)]

        assert tool.conclude(group("ScatterReduceBackward0", "src", "reduce")) == {
            "ScatterReduceBackward0": {"src": [{"reduce": "a"}]}
        }
        assert tool.conclude(group("ScatterReduceBackward0", "src", "dim")) == {}
        assert tool.conclude(group("TakeBackward0", "self", "reduce")) == {}

    def test_gradients_of_zeros_show_something_only_where_a_branch_is_known(self, tool: Any) -> None:
        def zeros(node: str, slot: str, **features: Any) -> list[dict[str, Any]]:
            return [{**self.seen(node, slot, False, **features), "zero": True}] * 9

        assert tool.conclude(zeros("TakeBackward0", "self")) == {}
        assert tool.conclude(zeros("DivBackward2", "self", rounding_mode="floor")) == {
            "DivBackward2": {"self": [{"rounding_mode": "floor"}]}
        }

    def test_the_observer_sees_reads_and_their_absence(self, tool: Any) -> None:
        x = rand(3, 3)
        seen = list(tool.observe(lambda: F.nll_loss(x.exp(), INDEX), [x]))
        assert {(s["node"], s["slot"], s["read"]) for s in seen} >= {
            ("NllLossBackward0", "self", False),
            ("NllLossBackward0", "target", True),
            ("ExpBackward0", "result", True),
        }

    def test_a_killed_process_costs_only_its_own_observations(self, tool: Any) -> None:
        import os
        import signal

        def work() -> Any:
            yield {"node": "a"}
            os.kill(os.getpid(), signal.SIGTERM)

        assert tool.forked(work) == ([{"node": "a"}], "killed by signal 15")
