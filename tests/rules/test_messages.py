"""Every story against the message that the installed torch really raises; claims about sparse gradients as programs."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradmend.rules._messages import SparseRule, recognise, sparse_rules

INDEX = torch.tensor([[0, 1, 1], [2, 0, 2]])
SIZE = (2, 3)


def values() -> Tensor:
    return torch.tensor([1.0, 2.0, 3.0], requires_grad=True)


def coo() -> Tensor:
    return torch.sparse_coo_tensor(INDEX, values(), SIZE)


def csr(v: Tensor | None = None) -> Tensor:
    return torch.sparse_csr_tensor(torch.tensor([0, 1, 3]), INDEX[1], values() if v is None else v, SIZE)


def write_into_values() -> None:
    A = coo().coalesce()
    A.values()[1] += 1
    A.sum().backward()


def write_then_multiply() -> None:
    A = coo().coalesce()
    A.values()[1] += 1
    torch.sparse.mm(A, torch.ones(3, 2)).sum().backward()


def embedding_step(kind: Callable[..., Any], **options: Any) -> None:
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = kind(table.parameters(), lr=0.1, **options)
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.step()


def dense_in_sparse_adam() -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SparseAdam([w])
    w.sum().backward()
    optimizer.step()


def clip_embedding() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    nn.utils.clip_grad_norm_(table.parameters(), 1.0)
    pytest.skip("this torch takes the norm of a sparse gradient (2.15 does)")


def huge_product() -> None:
    n = 1_000_000
    A = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2, requires_grad=True), (n, n))
    (A @ torch.ones(n, 1)).sum().backward()


def first_batch() -> None:
    next(iter(torch.utils.data.DataLoader([coo().detach(), coo().detach()], batch_size=2)))  # type: ignore[arg-type]


def forward_mode() -> None:
    torch.func.jvp(
        lambda v: torch.sparse_coo_tensor(INDEX, v, SIZE) @ torch.ones(3, 1), (values(),), (torch.ones(3),)
    )


def checked(index: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(index, torch.ones(3), (2, 2), check_invariants=True)


# What raises it, the rule, and the title word by word.
RAISED: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: coo().values(), "GM301", "values() of an uncoalesced sparse tensor"),
    (lambda: coo().indices(), "GM301", "indices() of an uncoalesced sparse tensor"),
    (write_into_values, "GM302", "A write into the values() of a sparse tensor"),
    (write_then_multiply, "GM302", "A write into the values() of a sparse tensor"),
    (
        lambda: torch.sparse_coo_tensor(INDEX.expand(4, 2, 3), torch.ones(4, 3)),
        "GM304",
        "Indices whose shape is 4, 2, 3, not (dimensions, entries)",
    ),
    (
        lambda: torch.sparse_coo_tensor(INDEX.expand(4, 2, 3), torch.ones(4, 3), SIZE),
        "GM304",
        "Indices with 4 rows for a size of 2 dimensions",
    ),
    (
        lambda: torch.sparse_coo_tensor(INDEX.t(), torch.ones(3), SIZE),
        "GM304",
        "Indices with 3 rows for a size of 2 dimensions",
    ),
    (lambda: torch.sparse_coo_tensor(INDEX, torch.ones(4), SIZE), "GM305", "3 places, 4 values"),
    (
        lambda: torch.sparse_csr_tensor(
            torch.tensor([0, 1, 2]), INDEX[1], torch.ones(3), SIZE, check_invariants=True
        ),
        "GM305",
        "The row pointers of a CSR tensor don't end at its number of entries",
    ),
    (
        lambda: coo().sum(0).to_dense().sum().backward(),
        "GM306",
        "The backward of sum(dim) on a sparse tensor",
    ),
    (
        lambda: csr().sum(1, keepdim=True).to_dense().sum().backward(),
        "GM306",
        "The backward of sum(dim) on a sparse tensor",
    ),
    (huge_product, "GM307", "A backward that asked for the dense matrix: 4000000000000 bytes"),
    (lambda: embedding_step(torch.optim.Adam), "GM308", "Adam and a sparse gradient"),
    (lambda: embedding_step(torch.optim.RMSprop), "GM308", "RMSprop and a sparse gradient"),
    (lambda: embedding_step(torch.optim.SGD, fused=True), "GM308", "`_fused_sgd` and a sparse gradient"),
    (
        lambda: embedding_step(torch.optim.Adagrad, weight_decay=0.1),
        "GM308",
        "Weight decay and a sparse gradient",
    ),
    (dense_in_sparse_adam, "GM309", "SparseAdam and a dense gradient"),
    (lambda: coo().tanh().sum().backward(), "GM310", "The backward of tanh has no Sparse version"),
    (lambda: coo().amax(1), "GM310", "amax has no Sparse version"),
    (lambda: coo()[0:1], "GM310", "as_strided has no Sparse version"),
    (lambda: torch.sparse.softmax(csr(), 1), "GM310", "_sparse_softmax has no SparseCsr version"),
    (clip_embedding, "GM310", "linalg_vector_norm has no Sparse version"),
    (lambda: coo().reshape(3, 2), "GM310", "reshape has no sparse version"),
    (lambda: csr()[0:1], "GM310", "strides has no Sparse CSR version"),
    (lambda: torch.cat([csr(), csr()]), "GM310", "is_contiguous has no Sparse CSR version"),
    (lambda: torch.kron(coo(), coo()), "GM310", "storage has no Sparse version"),
    (lambda: coo() + 1, "GM311", "sparse + dense"),
    (lambda: embedding_step(torch.optim.SGD, weight_decay=0.1), "GM311", "sparse + dense"),
    (lambda: coo() / torch.ones(2, 3), "GM312", "A sparse tensor divided by a dense one"),
    (lambda: csr().sum(0), "GM313", "A reduction of a CSR tensor without keepdim"),
    (lambda: coo().__setitem__(0, 1.0), "GM314", "An assignment to an element of a sparse tensor"),
    (lambda: coo().detach().numpy(), "GM315", "A sparse tensor handed to numpy"),
    (first_batch, "GM316", "Sparse tensors in a DataLoader's batch"),
    (
        lambda: copy.deepcopy(nn.Parameter(coo().detach())),
        "GM317",
        "A copy of a sparse parameter or gradient",
    ),
    (lambda: checked(INDEX), "GM318", "An index outside of the size"),
    (lambda: checked(-INDEX), "GM318", "A negative index"),
    (forward_mode, "GM319", "Forward-mode differentiation through a sparse tensor"),
    (
        lambda: torch.sparse.mm(csr().bfloat16(), torch.ones(3, 2).bfloat16()),
        "GM320",
        "A sparse product in BFloat16",
    ),
]


@pytest.mark.parametrize(("program", "rule", "title"), RAISED, ids=[f"{r} {t}" for _, r, t in RAISED])
def test_what_torch_really_says(program: Callable[[], Any], rule: str, title: str) -> None:
    with pytest.raises(Exception) as caught:
        program()
    story = recognise(type(caught.value).__name__, str(caught.value))
    assert story is not None, f"not recognised: {type(caught.value).__name__}: {caught.value}"
    assert (story.rule, story.title) == (rule, title)


def test_the_warning_about_a_non_leaf() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert coo().grad is None
    (said,) = [w for w in caught if "leaf" in str(w.message)]
    story = recognise(said.category.__name__, str(said.message))
    assert story is not None and story.rule == "GM303" and not story.sure


def test_every_cause_is_raised_here() -> None:
    tried = {(rule, title) for _, rule, title in RAISED}
    for rule in sparse_rules():
        for told in rule.told:
            like = re.sub(r"\{\w+\}", "(.+)", re.escape(told.title).replace(r"\{", "{").replace(r"\}", "}"))
            seen = any(code == rule.code and re.fullmatch(like, title) for code, title in tried)
            assert seen or rule.code == "GM303", told.title


@pytest.mark.parametrize("rule", sparse_rules(), ids=lambda r: r.code)
def test_the_bad_program_is_told_by_its_own_rule(rule: SparseRule) -> None:
    said: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(rule.bad, rule.code, "exec"), {"__name__": "__main__"})
        except Exception as error:
            said.append(error)
    said += [w.message for w in caught]
    codes = [told.rule for e in said if (told := recognise(type(e).__name__, str(e))) is not None]
    assert codes == [rule.code]


def test_numbers_of_the_message_are_in_the_story() -> None:
    story = recognise(
        "RuntimeError",
        "indices and values must have same nnz, but got nnz from indices: 3, nnz from values: 4",
    )
    assert story is not None
    assert (story.rule, story.title, story.happened, story.write) == (
        "GM305",
        "3 places, 4 values",
        "Each entry is a place and a value. The indices name 3 places, and there are 4 values.",
        "Make values.shape[0] equal to indices.shape[1]. If the last entries are padding, cut both to the same length.",
    )


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "RuntimeError",
            "one of the variables needed for gradient computation has been modified by an inplace operation",
        ),
        ("RuntimeError", "Trying to backward through the graph a second time"),
        ("NotImplementedError", "Could not run 'aten::mm' with arguments from the 'QuantizedCPU' backend."),
        ("ValueError", "expand is unsupported for Sparse tensors"),  # not torch's: it raises RuntimeError
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"),
        ("RuntimeError", ""),
    ],
)
def test_other_errors_are_left_alone(kind: str, message: str) -> None:
    assert recognise(kind, message) is None


def test_texts_are_whole_sentences() -> None:
    assert [r.code for r in sparse_rules()] == [f"GM3{i:02}" for i in range(1, 21)]
    for s in (told for rule in sparse_rules() for told in rule.told):
        assert s.happened.endswith(".") and s.write.endswith(".") and not s.title.endswith(".")
        assert "{" not in re.sub(r"\{\w+\}", "", s.happened + s.write + s.title)


# The claims: what people say about sparse gradients, and what is true.


def test_claim_13_values_can_be_written_once_coalesced_and_backward_is_what_fails() -> None:
    with pytest.raises(RuntimeError, match="uncoalesced"):
        coo().values()[1] += 1
    A = coo().coalesce()
    A.values()[1] += 1
    assert A.to_dense()[1, 0] == 3  # the write went through
    with pytest.raises(RuntimeError, match="single memory location"):
        A.sum().backward()


def test_claim_14_sum_changes_nothing_in_place() -> None:
    A = coo()
    before, version = A.to_dense().clone(), A._version
    total = torch.sum(A, dim=0)
    assert torch.equal(A.to_dense(), before) and A._version == version
    with pytest.raises(RuntimeError, match="expand is unsupported for Sparse tensors"):
        total.to_dense().sum().backward()


def test_claim_15_a_third_dimension_of_indices_is_no_batch() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.sparse_coo_tensor(INDEX.expand(4, 2, 3), torch.ones(4, 3))
    story = recognise("RuntimeError", str(caught.value))
    assert story is not None and "A third dimension is not a batch" in story.happened


def test_claim_16_the_gradient_is_in_the_values() -> None:
    v = values()
    A = torch.sparse_coo_tensor(INDEX, v, SIZE)
    A.sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert A.grad is None
    assert v.grad is not None and v.grad.layout == torch.strided and torch.equal(v.grad, torch.ones(3))


def test_claim_17_the_gradient_of_values_can_be_edited_and_clipped() -> None:
    v = values()
    (torch.sparse_coo_tensor(INDEX, v, SIZE) @ torch.full((3, 1), 5.0)).sum().backward()
    nn.utils.clip_grad_norm_([v], 1.0)
    assert v.grad is not None
    v.grad.clamp_(max=0.5).masked_fill_(torch.tensor([True, False, False]), 0)
    assert v.grad.tolist() == [0, 0.5, 0.5]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.SGD, torch.optim.AdamW])
def test_claim_18_zeros_stay_zero_with_every_optimizer(kind: Callable[..., Any]) -> None:
    v = nn.Parameter(torch.ones(3))
    optimizer = kind([v], lr=0.01)
    X = torch.arange(1.0, 7.0).view(3, 2) / 6
    for _ in range(3):
        optimizer.zero_grad()
        (torch.sparse_coo_tensor(INDEX, v, SIZE) @ X).pow(2).sum().backward()
        optimizer.step()
    dense = torch.sparse_coo_tensor(INDEX, v, SIZE).to_dense()
    assert (dense != 0).sum() == 3 and not torch.equal(v, torch.ones(3))


def test_claim_19_a_layer_rebuilt_from_values_trains_but_its_backward_is_dense() -> None:
    v = values()
    X = torch.randn(3, 2)
    torch.sparse.mm(torch.sparse_coo_tensor(INDEX, v, SIZE), X).sum().backward()
    assert v.grad is not None
    torch.testing.assert_close(v.grad, X.sum(1)[INDEX[1]])
    with pytest.raises(RuntimeError, match="tried to allocate 4000000000000 bytes"):
        huge_product()
