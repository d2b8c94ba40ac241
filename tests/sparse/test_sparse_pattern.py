"""Patterns: validated once, sorted once, sets of places."""

from __future__ import annotations

import pickle

import pytest
import torch

from gradmend.sparse import Pattern, PatternError, SparseTensor, band, full


def test_unsorted_and_repeated_places_keep_the_order_of_their_values() -> None:
    index = torch.tensor([[2, 0, 2, 1], [1, 0, 1, 2]])
    pattern = Pattern(index, (3, 3))
    assert (pattern.nnz, pattern.given, pattern.has_duplicates) == (3, 4, True)
    assert torch.equal(pattern.indices(), index)
    values = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    S = SparseTensor(pattern, values)
    want = torch.zeros(3, 3).index_put(tuple(index), values, accumulate=True)
    assert torch.equal(S.to_dense(), want)
    assert S.pattern.is_canonical
    # What comes out goes in again as it is.
    assert torch.equal(SparseTensor(S.pattern, S.values()).to_dense(), want)
    (S.to_dense() * torch.arange(9.0).view(3, 3)).sum().backward()
    assert values.grad.tolist() == [7, 0, 7, 5]


def test_equality_and_hash_are_by_content() -> None:
    a = Pattern([[0, 1], [1, 0]], (2, 2))
    b = Pattern(torch.tensor([[0, 1], [1, 0]]), (2, 2))
    assert a == b and hash(a) == hash(b) and len({a, b}) == 1
    assert a != Pattern([[0, 1], [1, 0]], (2, 3))
    assert a != Pattern([[0, 1], [1, 1]], (2, 2))
    assert a != "pattern"


def test_pickle_keeps_places_and_their_order() -> None:
    p = Pattern([[1, 0, 1], [0, 1, 0]], (2, 2))
    again = pickle.loads(pickle.dumps(p))
    assert again == p and torch.equal(again.indices(), p.indices()) and again.given == 3


def test_set_operations() -> None:
    a = Pattern.random((30, 40), density=0.2, generator=torch.Generator().manual_seed(0))
    b = Pattern.random((30, 40), density=0.2, generator=torch.Generator().manual_seed(1))

    def dense(p: Pattern) -> torch.Tensor:
        return SparseTensor(p, torch.ones(p.nnz)).to_dense().bool()

    assert torch.equal(dense(a | b), dense(a) | dense(b))
    assert torch.equal(dense(a & b), dense(a) & dense(b))
    assert torch.equal(dense(a - b), dense(a) & ~dense(b))
    places = torch.cat([a.indices()[:, :3], (b - a).indices()[:, :3]], 1)
    assert a.contains(places).tolist() == [True] * 3 + [False] * 3


def test_missing_places_are_exact() -> None:
    p = Pattern.random((9, 11), density=0.6, generator=torch.Generator().manual_seed(0))
    free = p.numel - p.nnz
    assert p.missing(free) == full((9, 11)) - p
    some = p.missing(7, torch.Generator().manual_seed(1))
    assert some.nnz == 7 and (some & p).nnz == 0
    huge = Pattern.random((10**9, 10**9), nnz=1000, generator=torch.Generator().manual_seed(0))
    assert huge.nnz == 1000 and huge.missing(500).nnz == 500
    with pytest.raises(PatternError, match=r"^100 places were asked for, and 40 are free\.$"):
        Pattern.random((9, 11), nnz=59).missing(100)


def test_random_patterns_are_uniform() -> None:
    counts = torch.zeros(6)
    g = torch.Generator().manual_seed(0)
    for _ in range(600):
        counts[Pattern.random((2, 3), nnz=1, generator=g).keys()] += 1
    assert counts.min() > 60 and counts.max() < 150


def test_blocks_and_bands() -> None:
    p = Pattern.blocks([[0, 1], [1, 0]], (2, 2), (4, 4))
    dense = SparseTensor(p, torch.ones(p.nnz)).to_dense()
    assert dense.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]]
    q = band(4)
    assert torch.equal(SparseTensor(q, torch.ones(q.nnz)).to_dense(), torch.ones(4, 4).tril(1).triu(-1))


def test_transpose_is_cached_and_leaves_no_cycle() -> None:
    import gc
    import weakref

    p = Pattern.random((50, 60), density=0.2)
    p.prepare()
    t = p.flipped()
    assert p.flipped() is t
    assert torch.equal(t.transposed()[2][p.transposed()[2]], torch.arange(p.nnz))
    seen = weakref.ref(p)
    gc.disable()
    try:
        del p, t
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("indices", "size", "said"),
    [
        (torch.zeros(4, 2, 3, dtype=torch.int64), (4, 4), r"\(dimensions, entries\).*batch_dims=1"),
        (torch.zeros(2, 3), (4, 4), r"^indices must be whole numbers \(int64\), not torch.float32"),
        ([[0, 4], [0, 0]], (4, 4), r"^entry 1 has the index 4 in dimension 0, which goes from 0 to 3\.$"),
        ([[0, -1], [0, 0]], (4, 4), r"^entry 1 has the index -1 in dimension 0"),
        ([[0], [0]], (4,), r"^indices name 2 dimensions and the size \(4,\) has 1"),
        ([[0], [0]], (2**40, 2**40), r"int64"),
        ([[0], [0]], (4, -1), r"negative"),
        (torch.zeros(2, 0, dtype=torch.int64), None, r"needs its size"),
    ],
)
def test_bad_patterns_are_told_in_one_sentence(indices: object, size: object, said: str) -> None:
    with pytest.raises(PatternError, match=said):
        Pattern(indices, size)


def test_values_that_do_not_match_are_told_how() -> None:
    p = Pattern([[0, 1, 1], [0, 1, 1]], (2, 2))
    with pytest.raises(
        PatternError, match=r"^the pattern has 3 entries and dimension 0 of the values has 2 .*twice"
    ):
        SparseTensor(p, torch.ones(2))
    with pytest.raises(PatternError, match=r"say batch_dims=1"):
        SparseTensor(p, torch.ones(5, 3))
    with pytest.raises(PatternError, match=r"no dimension for the 3 entries"):
        SparseTensor(p, torch.tensor(1.0))
    with pytest.raises(PatternError, match=r"SparseTensor.from_coo"):
        SparseTensor(torch.zeros(2, 3), torch.ones(3))
