from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM304",
    name="indices-of-another-shape",
    summary="The indices of a sparse tensor are not (dimensions, entries).",
    what="""
Finds indices with a batch dimension, as pairs, or of another number of dimensions than the size has.
""",
    told=(
        Told(
            title="Indices whose shape is {shape}, not (dimensions, entries)",
            happened=(
                "The indices of a COO tensor are one matrix: a row per sparse dimension, a column per entry. A "
                "third dimension is not a batch."
            ),
            write=(
                "For a batch on one pattern write `SparseTensor(Pattern(indices, size), values, batch_dims=1)` "
                "with values (batch, entries); for a batch of different patterns add a row to the indices that "
                "numbers the items: (3, entries) and size (batch, rows, columns)."
            ),
            says=(r"indices must be sparse_dim x nnz, but got: \[(?P<shape>[\d, ]+)\]",),
        ),
        Told(
            title="Indices with {rows} rows for a size of {length} dimensions",
            happened=(
                "The first dimension of the indices must be the number of sparse dimensions: PyTorch counted "
                "{rows} rows of indices and {dense} dense dimensions, and the size has {length}. Indices of shape"
                " (batch, 2, entries) or (entries, 2) are read this way too."
            ),
            write=(
                "Give the indices as (2, entries) for a matrix: write `indices.t()` if they are pairs. For a "
                "batch on one pattern write `SparseTensor(Pattern(indices, size), values, batch_dims=1)`."
            ),
            says=(
                r"'len\(size\) == sparse_dim \+ dense_dim' is not satisfied: len\(size\) = (?P<length>\d+), sparse_dim = (?P<rows>\d+), dense_dim = (?P<dense>\d+)",
                r"number of dimensions must be sparse_dim \((?P<rows>\d+)\) \+ dense_dim \((?P<dense>\d+)\), but got (?P<length>\d+)",
            ),
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.ones(4, 3, requires_grad=True)
A = torch.sparse_coo_tensor(indices.expand(4, 2, 3), values)
""",
    good="""
import torch

from gradmend.sparse import Pattern, SparseTensor

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.ones(4, 3, requires_grad=True)
S = SparseTensor(Pattern(indices, (2, 3)), values, batch_dims=1)
S.sum().backward()
""",
    gradient="values.grad",
    right="torch.ones(4, 3)",
)
