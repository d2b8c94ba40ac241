from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM311",
    name="sparse-plus-dense",
    summary="A sparse tensor plus a number or a dense tensor has a number in every entry.",
    what="""
Finds `A + 1` and `A + X` for a sparse A, also where an optimizer's weight decay adds them.
""",
    told=(
        Told(
            title="sparse + dense",
            happened=(
                "A sparse tensor plus a number or a dense tensor is dense in every entry, and PyTorch adds only "
                "the other way round. With SGD it is weight decay that adds the dense parameter to a sparse "
                "gradient."
            ),
            write=(
                "Write `dense + A` for the dense sum, or change the stored entries only: "
                "`SparseTensor.from_torch(A).map(lambda v: v + 1)`. In SGD set weight_decay=0 for parameters with"
                " sparse gradients."
            ),
            says=(r"add\(sparse, dense\) is not supported",),
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3))
(A + 1).sum().backward()
""",
    good="""
import torch

from gradmend.sparse import SparseTensor

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
S = SparseTensor.from_coo(indices, values, (2, 3))
S.map(lambda v: v + 1).sum().backward()
""",
    gradient="values.grad",
    right="torch.ones(3)",
)
