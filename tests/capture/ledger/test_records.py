"""A record says where a write went, whatever the tensor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from strided import views
from torch._subclasses import FakeTensorMode

import gradmend
from gradmend.capture import recorder
from gradmend.capture.memory.layouts import layout_of


def _of(t: torch.Tensor) -> recorder.Place:
    (place,) = recorder.unpacked(recorder._places([t]))
    assert place == recorder._place(t)  # the same where C does not look
    return place


@settings(max_examples=300, deadline=None)
@given(views())
def test_a_place_is_what_the_attributes_say(t: torch.Tensor) -> None:
    for _ in range(2):
        place = _of(t)
        assert (place[0], place[2]) == (t.data_ptr(), t._version)
        assert not t.is_contiguous() or (place[1], place[3]) == (t.nbytes, None)
        with torch.no_grad():
            t.zero_()


def _kinds() -> dict[str, torch.Tensor]:
    floats = torch.ones(4, 6)
    return {
        "leaf": torch.ones(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(2, 3)),
        "computed": torch.ones(3, requires_grad=True) * 2,
        "scalar": torch.tensor(1.0),
        "empty": torch.empty(0, 4),
        "view": floats[1:, :],
        "bool": torch.ones(5, dtype=torch.bool),
        "bfloat16": torch.ones(5, dtype=torch.bfloat16),
        "float8": torch.ones(5).to(torch.float8_e4m3fn),
        "channels last": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conjugated": torch.ones(3, dtype=torch.complex64).conj(),
        "negated": torch.ones(3, dtype=torch.complex64).conj().imag,
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        "transposed": floats.t(),
        "expanded": torch.ones(1).expand(5),
    }


@pytest.mark.parametrize("kind", _kinds())
def test_every_kind_of_tensor_has_its_place(kind: str) -> None:
    t = _kinds()[kind]
    lo, size, version, grid = _of(t)
    assert (lo, version) == (t.data_ptr(), t._version)
    if t.is_contiguous():
        assert (size, grid) == (t.nbytes, None)
    else:
        layout = layout_of(t)
        assert size == layout.hi - layout.lo
        assert grid == (None if layout.dense else layout)


@pytest.mark.parametrize(
    "t",
    [torch.ones(3, 3).to_sparse(), torch.nested.nested_tensor([torch.ones(2)]), torch.ones(2, device="meta")],
    ids=["sparse", "nested", "meta"],
)
def test_what_has_no_plain_memory_is_written_as_ever(t: torch.Tensor) -> None:
    gradmend.install()
    try:
        assert t.mul_(2) is t
        ring = recorder.current()
        assert ring is not None and all(w.op == "mul_" for w in ring.writes())
    finally:
        gradmend.uninstall()


@pytest.mark.filterwarnings("error")
def test_no_fake_tensor_is_asked_where_it_lies() -> None:
    gradmend.install()
    try:
        with FakeTensorMode():
            layer = torch.nn.Linear(3, 3)
            layer(torch.ones(2, 3)).sum().backward()
            torch.optim.SGD(layer.parameters(), lr=0.1).step()
            torch.ones(3).add_(1)
    finally:
        gradmend.uninstall()


def test_one_tensor_without_memory_leaves_the_others_of_its_call_recorded() -> None:
    gradmend.install()
    try:
        dense, sparse = torch.ones(3), torch.eye(2).to_sparse()
        torch._foreach_zero_([sparse, dense])
        ring = recorder.current()
        assert ring is not None
        assert [(w.op, w.lo) for w in ring.writes()[-1:]] == [("_foreach_zero_", dense.data_ptr())]
    finally:
        gradmend.uninstall()
