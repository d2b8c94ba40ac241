from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM314",
    name="assignment-to-a-sparse-tensor",
    summary="An element of a sparse tensor was assigned to.",
    what="""
Finds `A[i, j] = x` on a sparse tensor.
""",
    told=(
        Told(
            title="An assignment to an element of a sparse tensor",
            happened="The place may not be stored, and PyTorch adds no entries by assignment.",
            write=(
                "Build the tensor with the new value: change the tensor of values out of place, or add a sparse "
                "tensor that holds the change."
            ),
            says=(r"Cannot assign to a sparse tensor",),
            types=("TypeError",),
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values.detach(), (2, 3))
A[0, 2] = 5.0
""",
    good="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
values_now = torch.where(torch.tensor([True, False, False]), 5.0, values)
A = torch.sparse_coo_tensor(indices, values_now, (2, 3))
A.sum().backward()
""",
    gradient="values.grad",
    right="torch.tensor([0.0, 1.0, 1.0])",
)
