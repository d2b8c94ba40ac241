"""The history of a storage: every fact in it is checked against the program that made it."""

from __future__ import annotations

import json

import torch

import gradmend
from gradmend.model import Conflict, History, Session
from gradmend.report.saved import from_json


def conflict_of(program: object) -> Conflict:
    try:
        with gradmend.watch():
            program()  # type: ignore[operator]
    except gradmend.ConflictError as error:
        return error.conflict
    raise AssertionError("no conflict")


def history_of(program: object) -> History:
    history = conflict_of(program).history
    assert history is not None
    return history


def test_saves_writes_and_the_read_on_one_clock() -> None:
    def program() -> None:
        x = torch.arange(12.0).reshape(3, 4).requires_grad_()
        h = x.sigmoid()
        h[1].add_(1)
        h[2].mul_(0)
        h.sum().backward()

    history = history_of(program)
    assert history.nbytes == 48 and history.left_out == 0
    assert [e.what for e in history.events] == ["save", "write", "write", "read"]
    assert [e.tick for e in history.events] == sorted(e.tick for e in history.events)
    assert [e.version for e in history.events] == [0, 1, 2, 2]
    assert [(lane.lo, lane.hi) for lane in history.lanes] == [(0, 48), (16, 32), (32, 48)]
    x = torch.arange(12.0).reshape(3, 4).sigmoid()
    low, high = float(x.min()), float(x.max())
    after = x.clone()
    after[1] += 1
    assert history.events[0].values == (low, high)
    assert history.events[1].values == (float(after.min()), float(after.max()))
    assert history.events[3].values == (0.0, float(after.max()))
    assert history.changed == ((16, 48),)
    lines = [history.places[e.place][1] for e in history.events]
    first = program.__code__.co_firstlineno
    assert lines == [first + 2, first + 3, first + 4, first + 5]
    assert [n.name for n in history.graph if n.level == 0] == ["SigmoidBackward0"]
    assert {n.name.rpartition("::")[2] for n in history.graph if n.level == 1} == {"AccumulateGrad"}
    assert [n.name.rpartition("::")[2] for n in history.graph if n.level == -1]


def test_only_bytes_that_changed_are_marked() -> None:
    def program() -> None:
        x = torch.ones(4, 4, requires_grad=True)
        h = x.exp()
        h.t()[1].mul_(torch.tensor([1.0, 2.0, 1.0, 2.0]))  # a column: of its elements, two change
        h.sum().backward()

    assert history_of(program).changed == ((20, 24), (52, 56))


def test_quiet_writes_move_no_version() -> None:
    def program() -> None:
        h = torch.ones(3, requires_grad=True).exp()
        h.data.add_(1)
        h.sum().backward()

    history = history_of(program)
    write = next(e for e in history.events if e.what == "write")
    assert write.quiet and write.version is None
    assert history.events[-1].version == 0


def test_a_saved_view_says_how_it_lies() -> None:
    def program() -> None:
        base = torch.ones(4, 6, requires_grad=True) * 2
        part = base[1:3].t()
        out = part.pow(2).sum()
        base.add_(1)
        out.backward()

    views = history_of(program).views
    assert views[0] == "base: float32[4, 6]" and views[-1].endswith(
        "shape [6, 2], strides [1, 6], from element 6"
    )


def test_a_loop_of_ten_thousand_writes_is_bounded_and_travels_as_json() -> None:
    def program() -> None:
        x = torch.ones(64, requires_grad=True)
        h = x.exp()
        for k in range(10_500):
            h[k % 64] += 1
        h.sum().backward()

    conflict = conflict_of(program)
    assert conflict.history is not None and 1000 < len(conflict.history.events) <= 10_000
    session = Session("conflict", [conflict])
    assert from_json(json.loads(json.dumps(session.as_json()))).conflicts[0].history == conflict.history
