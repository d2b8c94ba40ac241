from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM312",
    name="sparse-divided-by-dense",
    summary="PyTorch divides a sparse tensor by a number only.",
    what="""
Finds `A / X` for a sparse A and a dense X.
""",
    told=(
        Told(
            title="A sparse tensor divided by a dense one",
            happened="PyTorch divides a sparse tensor by a number only; the divisor has the shape ({shape}).",
            write=(
                "Write `SparseTensor.from_torch(A) / X`: it divides the stored entries by X at their places. By "
                "hand: `values / X[indices[0], indices[1]]`."
            ),
            says=(
                r"Sparse division requires a scalar or zero-dim dense tensor divisor \(got shape \[(?P<shape>[\d, ]*)\]",
            ),
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3))
(A / torch.full((2, 3), 4.0)).sum().backward()
""",
    good="""
import torch

from gradmend.sparse import SparseTensor

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
S = SparseTensor.from_coo(indices, values, (2, 3))
(S / torch.full((2, 3), 4.0)).sum().backward()
""",
    gradient="values.grad",
    right="torch.full((3,), 0.25)",
)
