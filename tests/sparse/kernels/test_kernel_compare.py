"""same_numbers must say what torch.equal says, by whichever road."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradmend.sparse.errors import SparseError
from gradmend.sparse.kernels import compare
from gradmend.sparse.kernels.compare import same_numbers

LENGTHS = (0, 1, compare._LONG - 1, compare._LONG, compare._LONG + 3)


def changed(t: Tensor, at: int) -> Tensor:
    out = t.clone()
    out.view(-1)[at] += 1
    return out


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_equal_and_each_end_changed(n: int, dtype: torch.dtype) -> None:
    a = torch.arange(n).to(dtype)
    assert same_numbers(a, a.clone())
    for at in (0, n // 2, n - 1) if n else ():
        assert not same_numbers(a, changed(a, at))
        assert not same_numbers(changed(a, at), a)


def test_shapes_dtypes_and_strides_are_not_bytes_alone() -> None:
    n = 2 * compare._LONG
    a = torch.arange(n)
    assert not same_numbers(a, a.view(2, -1))  # as torch.equal: a shape is part of it
    assert not same_numbers(a, a[:-1])
    wide = torch.arange(n).repeat_interleave(2)
    assert same_numbers(wide[::2], a) and same_numbers(a, wide[::2])
    assert not same_numbers(wide[1:][::2], changed(a, n - 1))
    turned = a.view(2, -1).t()
    assert same_numbers(turned, turned.contiguous())
    assert not same_numbers(turned, a.view(-1, 2))
    zeros = torch.zeros(n)
    assert same_numbers(zeros, -zeros) and not same_numbers(zeros / 0, zeros / 0)  # 0 == -0, nan != nan
    assert not same_numbers(a[1:], a[:-1])  # of one storage, apart by one


def test_memory_that_was_taken_away_is_not_read() -> None:
    a, b = torch.arange(compare._LONG), torch.arange(compare._LONG)
    b.untyped_storage().resize_(8)
    with pytest.raises(SparseError, match="freed or made smaller"):
        same_numbers(a, b)


def test_without_a_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_memcmp", None)
    a = torch.arange(compare._LONG)
    assert same_numbers(a, a.clone()) and not same_numbers(a, changed(a, 5))
