from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM307",
    name="backward-through-the-dense-matrix",
    summary="The backward of a sparse product asked for a dense matrix, and memory ran out.",
    what="""
Finds products of a sparse matrix built from values that require grad, whose backward needs rows x columns numbers.
""",
    told=(
        Told(
            title="A backward that asked for the dense matrix: {size} bytes",
            happened=(
                "When a sparse matrix is built from values that require grad, PyTorch's backward of `A @ X` first"
                " makes the gradient of every entry, stored or not: rows x columns numbers."
            ),
            write=(
                "Run under `with gradmend.sparse.patch():`, or use gradmend.sparse.SparseTensor: both compute the"
                " gradient of the stored entries only."
            ),
            says=(r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (?P<size>\d+) bytes",),
            sure=False,
        ),
    ),
    bad="""
import torch

n = 1_000_000
indices = torch.tensor([[0, 1], [1, 0]])
values = torch.ones(2, requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (n, n))
(A @ torch.ones(n, 1)).sum().backward()
""",
    good="""
import torch

import gradmend.sparse

n = 1_000_000
indices = torch.tensor([[0, 1], [1, 0]])
values = torch.ones(2, requires_grad=True)
with gradmend.sparse.patch():
    A = torch.sparse_coo_tensor(indices, values, (n, n))
    (A @ torch.ones(n, 1)).sum().backward()
""",
    gradient="values.grad",
    right="torch.ones(2)",
)
