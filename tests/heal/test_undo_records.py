"""What healing keeps: the overwritten elements that a live Save needs, no more, and no longer than the Save."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from healed import start

import gradmend
from gradmend.capture.taps.hub import LEDGER

Write = Callable[[torch.Tensor], object]
N = 1000
ITEM = 8  # bytes of a float64


def kept_by(write: Write, saves: Callable[[torch.Tensor], torch.Tensor] = lambda b: b**2) -> int:
    x = start(10, N // 10)
    with gradmend.heal():
        b = x * 1
        loss = saves(b).sum()
        write(b)
        kept = LEDGER.kept_bytes()
        loss.backward()
    assert x.grad is not None
    untouched = start(10, N // 10)
    saves(untouched * 1).sum().backward()
    assert torch.equal(x.grad, untouched.grad)  # type: ignore[arg-type]
    return kept


def _mask(b: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(b.shape, dtype=torch.bool)
    mask[2, 3] = mask[7, 50] = mask[9, 99] = True
    return mask


PLACES = torch.tensor([3, 7])
BY_ELEMENT: dict[str, tuple[Write, int]] = {  # the write, and how many elements it touches
    "a row": (lambda b: b[3].zero_(), 100),
    "a column": (lambda b: b[:, 3].zero_(), 10),
    "one element": (lambda b: b[3, 3].zero_(), 1),
    "b[3:5] = 0": (lambda b: b.__setitem__(slice(3, 5), 0.0), 200),
    "b[:, ::50] *= 2": (lambda b: b[:, ::50].mul_(2), 20),
    "b[mask] = 0": (lambda b: b.__setitem__(_mask(b), 0.0), 3),
    "b[index] = 0": (lambda b: b.__setitem__(PLACES, 0.0), 200),
    "b[index, index] = 0": (lambda b: b.__setitem__((PLACES, PLACES), 0.0), 2),
    "b[:, index] = 0": (lambda b: b.__setitem__((slice(None), PLACES), 0.0), 20),
    "b[[1, 2]] = 0": (lambda b: b.__setitem__([1, 2], 0.0), 200),
    "masked_fill_": (lambda b: b.masked_fill_(_mask(b), 0.0), 3),
    "masked_fill_ of whole columns": (lambda b: b.masked_fill_(_mask(b)[2], 0.0), 10),
    "masked_scatter_": (lambda b: b.masked_scatter_(_mask(b), torch.ones(3, dtype=b.dtype)), 3),
    "index_put_": (lambda b: b.index_put_((PLACES, PLACES), torch.zeros((), dtype=b.dtype)), 2),
    "index_put_ accumulate": (
        lambda b: b.index_put_((PLACES, PLACES), torch.ones((), dtype=b.dtype), accumulate=True),
        2,
    ),
    "index_fill_": (lambda b: b.index_fill_(1, PLACES, 0.0), 20),
    "index_add_": (lambda b: b.index_add_(0, PLACES, torch.ones(2, 100, dtype=b.dtype)), 200),
    "index_copy_": (lambda b: b.index_copy_(1, PLACES, torch.ones(10, 2, dtype=b.dtype)), 20),
    "index_reduce_": (lambda b: b.index_reduce_(1, PLACES, torch.ones(10, 2, dtype=b.dtype), "prod"), 20),
    "scatter_": (lambda b: b.scatter_(1, PLACES.view(1, 2), 0.0), 2),
    "scatter_add_": (lambda b: b.scatter_add_(1, PLACES.view(1, 2), torch.ones(1, 2, dtype=b.dtype)), 2),
    "scatter_reduce_": (
        lambda b: b.scatter_reduce_(1, PLACES.view(1, 2), torch.ones(1, 2, dtype=b.dtype), "sum"),
        2,
    ),
    "put_": (lambda b: b.put_(PLACES, torch.zeros(2, dtype=b.dtype)), 2),
    "torch.masked_fill(out)": (lambda b: b.copy_(b.detach() * 2), N),
    "all of it": (lambda b: b.mul_(2), N),
}


@pytest.mark.parametrize("name", list(BY_ELEMENT))
def test_only_the_touched_elements_are_kept(name: str) -> None:
    write, touched = BY_ELEMENT[name]
    assert kept_by(write) == touched * ITEM


def test_only_the_overlap_with_what_was_saved_is_kept() -> None:
    assert kept_by(lambda b: b.mul_(2), lambda b: b[2] ** 2) == 100 * ITEM
    assert kept_by(lambda b: b.mul_(2), lambda b: b[:, ::50] ** 2) == 20 * ITEM
    assert kept_by(lambda b: b[1].mul_(2), lambda b: b[2] ** 2) == 0
    assert kept_by(lambda b: b[:, 1::2].mul_(2), lambda b: b[:, ::2] ** 2) == 0
    assert kept_by(lambda b: b[:5].mul_(2), lambda b: b[4:] ** 2) == 100 * ITEM


def test_nothing_is_kept_when_no_save_lives() -> None:
    with gradmend.heal():
        x = start()
        b = x * 1
        b.mul_(3)  # `x * 1` keeps nothing
        assert LEDGER.kept_bytes() == 0
        loss = (b**2).sum()
        loss.backward()  # frees what was kept
        b.mul_(3)
        LEDGER.bury()
        assert LEDGER.kept_bytes() == 0
        with torch.no_grad():
            c = b**2
            b.mul_(2)
            c.mul_(2)
        assert LEDGER.kept_bytes() == 0


def test_records_go_with_the_saves_that_they_serve() -> None:
    x = start(1000)
    with gradmend.heal():
        b = x * 1
        losses = []
        for _ in range(50):
            losses.append((b**2).sum())
            b.mul_(1.01)
        assert LEDGER.kept_bytes() == 50 * 1000 * ITEM
        del losses[:40]
        LEDGER.bury()
        # Between two Saves that live, one Record is enough; a few dead ones may wait for the next tidying.
        assert LEDGER.kept_bytes() <= 30 * 1000 * ITEM
        losses.clear()
        LEDGER.bury()
        assert LEDGER.kept_bytes() == 0
        assert not LEDGER.timelines


def test_two_writes_of_one_region_are_kept_once() -> None:
    x = start(1000)
    with gradmend.heal():
        b = x * 1
        loss = (b**2).sum()
        for _ in range(500):
            b.mul_(1.01)
        assert LEDGER.kept_bytes() <= 20 * 1000 * ITEM
        loss.backward()
    assert torch.equal(x.grad, 2 * x.detach())  # type: ignore[arg-type]


def test_an_index_changed_after_the_write_changes_nothing() -> None:
    x = start()
    with gradmend.heal():
        b = x * 1
        loss = (b**2).sum()
        places, mask = torch.tensor([1]), torch.tensor([False, False, True, False])
        b[places] = 0.0
        b[mask] = 0.0
        b.masked_fill_(mask, 5.0)
        places.fill_(3)
        mask.fill_(True)
        loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 4, 6, 8]


def test_the_session_tells_what_was_paid() -> None:
    x = start(100)
    with gradmend.heal() as session:
        b = x * 1
        loss = (b**2).sum()
        b[:10] = 0.0
        loss.backward()
    (conflict,) = session.conflicts
    assert session.outcome == "healed"
    assert conflict.healed_bytes == 10 * ITEM
    assert conflict.times == 1


def test_what_heals_several_is_paid_once() -> None:
    x = start(100)
    with gradmend.heal() as session:
        b = x * 1
        loss = (b**2 + b.sin()).sum()
        b.zero_()
        loss.backward()
    assert sum(c.times for c in session.conflicts) == 2
    assert sum(c.healed_bytes for c in session.conflicts) == 100 * ITEM


def _square(y: torch.Tensor) -> torch.Tensor:
    return y.mul_(y)


def _row_by_row(y: torch.Tensor) -> torch.Tensor:
    y[1] *= y[0]
    return y


def _by_itself_turned(y: torch.Tensor) -> torch.Tensor:
    return y.mul_(y.flip(0))


@pytest.mark.parametrize("write", [_square, _row_by_row, _by_itself_turned])
@pytest.mark.parametrize("keeps", [True, False])
def test_an_op_that_saves_what_it_overwrites(
    write: Callable[[torch.Tensor], torch.Tensor], keeps: bool
) -> None:
    """Whether or not anything else saved that memory before."""
    x = torch.tensor([0.3, 0.5], dtype=torch.float64, requires_grad=True)

    def made() -> torch.Tensor:
        return x.exp() if keeps else x.sin()

    with gradmend.heal():
        write(made()).sum().backward()
    assert x.grad is not None
    healed, x.grad = x.grad, None
    y = made()
    meant = {_square: y * y, _row_by_row: torch.stack([y[0], y[1] * y[0]]), _by_itself_turned: y * y.flip(0)}
    meant[write].sum().backward()
    assert torch.equal(healed, x.grad)
