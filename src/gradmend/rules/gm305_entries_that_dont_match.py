from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM305",
    name="entries-that-dont-match",
    summary="A sparse tensor was given another number of values than of places.",
    what="""
Finds constructors whose indices and values disagree on the number of entries.
""",
    told=(
        Told(
            title="{places} places, {values} values",
            happened=(
                "Each entry is a place and a value. The indices name {places} places, and there are {values} "
                "values."
            ),
            write=(
                "Make values.shape[0] equal to indices.shape[1]. If the last entries are padding, cut both to the"
                " same length."
            ),
            says=(
                r"indices and values must have same nnz, but got nnz from indices: (?P<places>\d+), nnz from values: (?P<values>\d+)",
            ),
        ),
        Told(
            title="The row pointers of a CSR tensor don't end at its number of entries",
            happened=(
                "crow_indices counts the entries up to each row, so that its last number is the number of entries"
                " in col_indices and values. Here it is another."
            ),
            write=(
                "Rebuild crow_indices as [0, cumulative sum of entries per row], or let "
                "SparseTensor.from_coo(indices, values, size) sort and count."
            ),
            says=(r"`c(?:row|col)_indices\[\.\.\., -1\] == nnz` is not satisfied",),
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.ones(4, requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3))
""",
    good="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.ones(4, requires_grad=True)
A = torch.sparse_coo_tensor(indices, values[: indices.shape[1]], (2, 3))
A.sum().backward()
""",
    gradient="values.grad",
    right="torch.tensor([1.0, 1.0, 1.0, 0.0])",
)
