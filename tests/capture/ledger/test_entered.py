"""Writes and Saves as they are entered: the right regions, the same values, and nothing left behind."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modes import Seeing
from strided import bytes_of, views

import gradmend
from gradmend.capture import edge
from gradmend.capture.ledger.entries import Roll, Save, Write, made_save
from gradmend.capture.ledger.scopes import Scope
from gradmend.capture.memory import layouts
from gradmend.capture.memory.undo import Record, same_bytes
from gradmend.capture.native import loading
from gradmend.capture.taps.hub import LEDGER

needs_it = pytest.mark.skipif(
    loading.edge is None, reason="no compiler was found when gradmend was installed"
)


@needs_it
@settings(max_examples=400, deadline=None, database=None)
@given(views())
def test_a_grid_is_that_of_python(t: torch.Tensor) -> None:
    assert layouts.layout_of(t) == layouts._of_grid(edge.grid(t))
    assert layouts.layout_of(t) == layouts._by_attributes(t)
    assert hash(layouts.layout_of(t)) == hash(layouts._by_attributes(t))


def test_every_dtype_is_told_apart() -> None:
    """DLPack's codes for elements, as torch's own."""
    told = 0
    for dtype in {d for d in vars(torch).values() if isinstance(d, torch.dtype)}:
        try:
            t = torch.empty(3, dtype=dtype)
        except (RuntimeError, NotImplementedError):
            continue
        layout = layouts.layout_of(t)
        assert layout == layouts._by_attributes(t) and layout.dtype is dtype and layout.hi == t.nbytes
        told += 1
    assert told > 20


@settings(max_examples=200, deadline=None, database=None)
@given(views())
def test_bytes_are_copied_and_put_back(t: torch.Tensor) -> None:
    storage, layout = t.untyped_storage(), layouts.layout_of(t)
    old = edge.copy_out(t.detach(), storage, layout.lo, layout.hi)
    assert old == edge._copy_out(t.detach(), storage, layout.lo, layout.hi)
    assert edge.copy_out(t.detach(), storage, 0, storage.nbytes() + 1) is None, "past the end"
    if old and layout.dense and not layout.repeats:
        new = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
        assert edge.fill(new, old) and same_bytes(new, t.detach())
        assert not edge.fill(new, old + b"x"), "more than it has room for"


@needs_it
def test_a_slice_costs_the_garbage_collector_six_objects() -> None:
    """The handle, weak references and the tuples of a layout: more, and short programs would be collected for ours."""
    x = torch.ones(100, 3, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        with gradmend.heal():
            b = x * 1
            total = torch.zeros(())
            counts = []
            for i in range(100):
                total = total + (b[i] ** 2).sum()
                b[i] = 0.0
                counts.append(gc.get_count()[0])
            total.backward()
    finally:
        gc.enable()
    assert counts[90] - counts[10] <= 6 * 80 + 8


@settings(max_examples=300, deadline=None, database=None)
@given(views(), st.data())
def test_bytes_are_compared_as_torch_does(t: torch.Tensor, data: st.DataObject) -> None:
    a = t.clone(memory_format=data.draw(st.sampled_from([torch.contiguous_format, torch.preserve_format])))
    b = a.clone(memory_format=data.draw(st.sampled_from([torch.contiguous_format, torch.preserve_format])))
    if a.numel() and data.draw(st.booleans()):
        at = tuple(data.draw(st.integers(0, n - 1)) for n in b.shape)
        b[at] = data.draw(st.sampled_from([0, 1, 2]))
    assert same_bytes(a, b) == torch.equal(a, b)


def test_minus_zero_and_nan_are_values_of_their_own() -> None:
    zeros, nans = torch.zeros(2), torch.full((2,), float("nan"))
    assert not same_bytes(zeros, -zeros)
    assert same_bytes(nans, nans.clone())


def last_written(t: torch.Tensor) -> Write:
    return LEDGER.timelines[t.untyped_storage()._cdata].log[-1]


part = st.one_of(
    st.integers(-4, 3),
    st.just(...),
    st.slices(5).filter(lambda s: s.step is None or s.step > 0),
    st.builds(slice, st.integers(-6, 6), st.integers(-6, 6), st.integers(1, 3)),
    st.none(),
)
keys = st.one_of(part, st.lists(part, max_size=4).map(tuple))


@settings(max_examples=300, deadline=None, database=None)
@given(keys, st.permutations([0, 1, 2]), st.sampled_from([1, 2]))
def test_what_is_written_is_what_the_key_picks(key: Any, order: list[int], step: int) -> None:
    w = torch.ones((), requires_grad=True)
    memory = torch.arange(24.0 * 8).view(4, 6, 8)[:, ::step].permute(order)
    try:
        view = memory[key]
    except (IndexError, ValueError):
        return
    with gradmend.watch():
        kept = memory * w
        at = LEDGER.timelines.get(memory.untyped_storage()._cdata)
        assert at is None or not at.log
        memory[key] = 0.0
        region = last_written(memory).layout
        over = region.over(memory.untyped_storage())
        assert bytes_of(over) == bytes_of(view)
    del kept


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a row": lambda m: m[1],
    "a column": lambda m: m[:, 1],
    "all": lambda m: m,
    "transposed": lambda m: m.t(),
    "steps": lambda m: m[::2, ::3],
    "one element": lambda m: m[2, 3],
    "nothing": lambda m: m[:0],
    "large": lambda m: torch.stack([m] * 800),
    "a part of dimension one": lambda m: m[1:2, :, None],
}


@pytest.mark.parametrize("where", sorted(LAYOUTS))
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "complex64", "complex128"])
def test_the_value_comes_back(where: str, dtype: str) -> None:
    """Three times from the same lines: the second and third are healed without being judged again."""
    kind = getattr(torch, dtype)

    def run(clones: bool) -> torch.Tensor:
        w = torch.ones((), dtype=kind, requires_grad=True)
        memory = (torch.arange(30.0).view(5, 6) - 7).to(kind)
        total = torch.zeros((), dtype=kind)
        for k in range(3):
            t = LAYOUTS[where](memory)
            t[...] = t.clone() + k
            saved = t.clone() if clones else t
            total = total + (saved * w).sum()
            t[...] = -1.0
        (total.real if kind.is_complex else total).backward()
        assert w.grad is not None
        return w.grad

    right = run(True)
    with gradmend.heal() as session:
        healed = run(False)
    assert torch.equal(right, healed)
    if where != "nothing":
        assert session.outcome == "healed" and sum(c.times for c in session.conflicts) == 3


@pytest.mark.parametrize("lazy", ["conj", "imag of conj", "expanded", "under a mode"])
def test_values_that_are_more_than_their_bytes(lazy: str) -> None:
    def run(clones: bool) -> tuple[torch.Tensor, list[str]]:
        memory = torch.complex(torch.arange(4.0), torch.arange(4.0) + 1)
        of = {
            "conj": lambda m: m.conj(),
            "imag of conj": lambda m: m.conj().imag,
            "expanded": lambda m: m.real.expand(3, 4),
            "under a mode": lambda m: m.real,
        }[lazy]
        w = torch.ones((), requires_grad=True)
        total: Any = 0.0
        for k in range(3):
            memory.add_(k)
            t = of(memory)
            product = (t.clone() if clones else t) * w
            total = (
                total + torch.view_as_real(product.resolve_conj()).sum()
                if product.is_complex()
                else total + product.sum()
            )
            memory[...] = 0
        mode = Seeing()
        if lazy == "under a mode":
            with mode:
                total.backward()
        else:
            total.backward()
        assert w.grad is not None
        return w.grad, mode.names

    right, seen = run(True)
    with gradmend.heal():
        healed, seen_healing = run(False)
    assert torch.equal(right, healed)
    assert seen_healing == seen, "a mode sees the program, not us"


def slices(n: int) -> torch.Tensor:
    x = torch.linspace(-1, 1, n * 4).view(n, 4).requires_grad_()
    b = x * 1
    total = torch.zeros(())
    for i in range(n):
        row = b[i]
        total = total + (row**2).sum()
        b[i] = 0.0
    total.backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
def test_neighbours_are_spared_and_counted(context: Callable[[], Any]) -> None:
    """PyTorch refuses each of these rows, although none was overwritten."""
    w = torch.ones(4, requires_grad=True)
    with context() as session:
        buffer = torch.zeros(9, 4)
        for i in range(8):
            buffer[i + 1] = buffer[i] * w + 1
        buffer[8].sum().backward()
    assert w.grad is not None and w.grad.tolist() == [28.0] * 4
    (told,) = session.conflicts
    assert (told.kind, told.times, session.outcome) == ("refused-but-right", 8, "clean")


def test_a_write_that_steps_no_counter_of_ours_is_not_told() -> None:
    w = torch.ones(4, requires_grad=True)
    with gradmend.watch() as session:
        buffer = torch.ones(9, 4)
        for i in range(8):
            y = buffer[i] * w
            buffer.data[i + 1] = 2.0
            y.sum().backward()
    assert w.grad is not None and w.grad.tolist() == [15.0] * 4
    assert session.conflicts == []


def test_a_write_that_raises_leaves_all_as_it_was() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    with gradmend.heal():
        b = x * 2
        y = b[1] ** 2
        with pytest.raises(RuntimeError, match="expand"):
            b[1] = torch.ones(7)
        with pytest.raises(IndexError):
            b[5] = 0.0
        with pytest.raises(TypeError):
            b.add_("x")
        b[1] = 0.0
        y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[0.0] * 4, [8.0] * 4, [0.0] * 4]


@needs_it
def test_the_collector_has_nothing_to_look_at() -> None:
    def living() -> int:
        return sum(type(o) in (Save, Write, Record, layouts.Layout) for o in gc.get_objects())

    with gradmend.heal():
        slices(8)
        x = torch.ones(64, 4, requires_grad=True)
        b = x * 1
        before = living()
        outs = torch.zeros(())
        for i in range(64):
            outs = outs + (b[i] ** 2).sum()
            b[i] = 0.0
        assert living() == before
        assert not gc.is_tracked(last_written(b))
        outs.backward()
    assert not LEDGER.timelines


def test_loops_leave_nothing_behind() -> None:
    def work() -> None:
        with gradmend.heal():
            for _ in range(6):
                slices(150)
        gc.collect()

    layouts._lately.clear()  # full of what other tests met, it would be emptied and filled again meanwhile
    grown = []
    for _ in range(6):  # bounded caches fill in the first few
        before = sys.getallocatedblocks()
        work()
        grown.append(sys.getallocatedblocks() - before)
    assert max(grown[-2:]) < 300
    assert not LEDGER.dead and not len(LEDGER.fresh)


def test_threads_write_side_by_side() -> None:
    wanted = torch.linspace(-1, 1, 240).view(60, 4) * 2
    right: list[bool] = []

    def work() -> None:
        for _ in range(15):
            with gradmend.heal():
                right.append(torch.allclose(slices(60), wanted))

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switching)
    assert right == [True] * 60  # a thread that raised would have told fewer


def entry(tick: int) -> Save:
    return made_save(torch.zeros(1), 0, tick, (), Scope("watch", lambda finding: None))


def ticks(roll: Roll) -> list[int]:
    return [e.tick for e in roll]


def test_a_roll_has_the_living_in_order() -> None:
    roll, other = Roll(), Roll()
    held = {k: entry(k) for k in range(6)}
    for e in held.values():
        roll.add(e)
    assert len(roll) == 6 and ticks(roll) == [0, 1, 2, 3, 4, 5]
    del e, held[0], held[3], held[5]
    assert len(roll) == 3 and ticks(roll) == [1, 2, 4]
    other.add(held[2])
    assert ticks(roll) == [1, 4] and ticks(other) == [2]
    del roll
    gc.collect()
    held.clear()
    assert len(other) == 0
