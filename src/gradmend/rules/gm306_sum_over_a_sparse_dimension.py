from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM306",
    name="sum-over-a-sparse-dimension",
    summary="PyTorch can't differentiate the sum of a sparse tensor over a dimension.",
    what="""
Finds the backward of `A.sum(dim)` and `torch.sum(A, dim)`. `torch.sparse.sum(A, dim)` of a
COO tensor has a derivative.
""",
    told=(
        Told(
            title="The backward of sum(dim) on a sparse tensor",
            happened=(
                "The sum itself was right, and changed nothing in place. Its backward spreads one gradient over a"
                " dimension, which PyTorch does with expand, and expand has no sparse version."
            ),
            write=(
                "Of a COO tensor write `torch.sparse.sum(A, dim)`, with a sparse result. Or"
                " run under `with gradmend.sparse.patch(masked=True):`, or sum with `SparseTensor.from_torch(A).sum(dim)`. By"
                " hand: `torch.zeros(rows).index_add(0, indices[0], values)` for the sum over columns."
            ),
            says=(r"expand is unsupported for Sparse(?:Csr)? tensors",),
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3))
(A.sum(0).to_dense() * torch.arange(3.0)).sum().backward()
""",
    good="""
import torch

from gradmend.sparse import SparseTensor

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
S = SparseTensor.from_coo(indices, values, (2, 3))
(S.sum(0) * torch.arange(3.0)).sum().backward()
""",
    gradient="values.grad",
    right="torch.tensor([2.0, 0.0, 2.0])",
)
