from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM313",
    name="csr-reduction",
    summary="PyTorch reduces CSR tensors with keepdim=True only.",
    what="""
Finds `A.sum(dim)` of a CSR tensor.
""",
    told=(
        Told(
            title="A reduction of a CSR tensor without keepdim",
            happened="PyTorch reduces CSR tensors with keepdim=True only, and can't differentiate that either.",
            write=(
                "Write `SparseTensor.from_torch(A).sum(dim)`, or build the tensor as COO and run under `with "
                "gradmend.sparse.patch(masked=True):`."
            ),
            says=(r"reduction operations on CSR tensors with keepdim=False is unsupported",),
        ),
    ),
    bad="""
import torch

crow, col = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 2])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_csr_tensor(crow, col, values, (2, 3))
A.sum(0)
""",
    good="""
import torch

from gradmend.sparse import SparseTensor

crow, col = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 2])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
S = SparseTensor.from_csr(crow, col, values, (2, 3))
(S.sum(0) * torch.arange(3.0)).sum().backward()
""",
    gradient="values.grad",
    right="torch.tensor([2.0, 0.0, 2.0])",
)
