from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM316",
    name="sparse-tensors-in-a-batch",
    summary="A DataLoader was to make a batch of sparse tensors.",
    what="""
Finds sparse tensors in `torch.utils.data.default_collate`.
""",
    told=(
        Told(
            title="Sparse tensors in a DataLoader's batch",
            happened="default_collate stacks dense tensors; it refuses sparse ones.",
            write=(
                "Return gradmend.sparse.SparseTensor from the dataset, or pass a collate_fn that stacks: "
                "`collate_fn=lambda items: torch.stack(items)`."
            ),
            says=(r"Batches of sparse tensors are not currently supported by the default collate_fn",),
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values.detach(), (2, 3))
batch = next(iter(torch.utils.data.DataLoader([A, A], batch_size=2)))
""",
    good="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values.detach(), (2, 3))
loader = torch.utils.data.DataLoader([A, A], batch_size=2, collate_fn=torch.stack)
batch = next(iter(loader))
""",
    gradient="values.grad",
)
