"""Regions are exact to the element: every answer equals that of the sets of bytes."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strided import bytes_of, views

from gradmend.capture.memory.layouts import Layout, LayoutIndex, layout_of, overlap, physical


@settings(max_examples=400, deadline=None, database=None)
@given(views())
def test_bounds_and_density(t: torch.Tensor) -> None:
    layout, covered = layout_of(t), bytes_of(t)
    if not covered:
        assert layout.lo == layout.hi
        return
    assert (layout.lo, layout.hi) == (min(covered), max(covered) + 1)
    if layout.dense:
        assert len(covered) == layout.hi - layout.lo
    assert layout.nbytes >= len(covered)


@settings(max_examples=600, deadline=None, database=None)
@given(views(), views())
def test_overlap_is_that_of_the_bytes(a: torch.Tensor, b: torch.Tensor) -> None:
    assert overlap(layout_of(a), layout_of(b)) == bool(bytes_of(a) & bytes_of(b))


@settings(max_examples=150, deadline=None, database=None)
@given(st.lists(views(), max_size=12), views(), st.data())
def test_the_index_finds_what_a_search_finds(
    many: list[torch.Tensor], one: torch.Tensor, data: st.DataObject
) -> None:
    index = LayoutIndex()
    layouts = [layout_of(t) for t in many]
    for layout in layouts:
        index.add(layout)
    for _ in range(data.draw(st.integers(0, len(layouts)))):
        index.remove(layouts.pop(data.draw(st.integers(0, len(layouts) - 1))))
    wanted = layout_of(one)
    found = list(index.meeting(wanted))
    assert len(found) == len(set(found))
    assert set(found) == {layout for layout in layouts if overlap(wanted, layout)}
    assert len(index) == len(set(layouts))


def test_a_layout_over_another_storage_is_the_same_view() -> None:
    t = torch.arange(24.0).reshape(4, 6)[1:, ::2].t()
    copy = torch.arange(24.0) * 10
    assert torch.equal(layout_of(t).over(copy.untyped_storage()), t * 10)
    shifted: Layout = layout_of(t).shifted(-t.element_size() * 6)
    assert torch.equal(shifted.over(copy.untyped_storage()), (t - 6) * 10)


def test_lazy_conjugation_and_negation_lie_as_their_memory() -> None:
    z = torch.tensor([1 + 2j, 3 + 4j])
    for lazy in (z.conj(), torch._neg_view(z), z.conj().imag):
        assert not physical(lazy).is_conj()
        assert not physical(lazy).is_neg()
        assert physical(lazy).data_ptr() == lazy.data_ptr()
    assert overlap(layout_of(physical(z.conj().imag)), layout_of(z))
    assert not overlap(layout_of(z.real), layout_of(z.imag))
