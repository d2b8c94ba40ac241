from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM320",
    name="sparse-product-of-half-precision",
    summary="PyTorch has no CSR product in bfloat16 or float16 on the CPU.",
    what="""
Finds products of CSR tensors in 16-bit floats.
""",
    told=(
        Told(
            title="A sparse product in {dtype}",
            happened="PyTorch's CSR products exist for 32- and 64-bit numbers only, on the CPU.",
            write=(
                "Use gradmend.sparse.SparseTensor, which multiplies in bfloat16 and float16 and sums in float32; "
                "or convert the values to float32."
            ),
            says=(r"\"\w*sparse\w*\" not implemented for '(?P<dtype>BFloat16|Half)'",),
        ),
    ),
    bad="""
import torch

crow, col = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 2])
values = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
A = torch.sparse_csr_tensor(crow, col, values, (2, 3))
torch.sparse.mm(A, torch.ones(3, 2, dtype=torch.bfloat16)).sum().backward()
""",
    good="""
import torch

from gradmend.sparse import SparseTensor

crow, col = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 2])
values = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
S = SparseTensor.from_csr(crow, col, values, (2, 3))
(S @ torch.ones(3, 2, dtype=torch.bfloat16)).sum().backward()
""",
    gradient="values.grad",
    right="torch.full((3,), 2.0)",
)
