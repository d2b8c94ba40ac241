from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM315",
    name="sparse-tensor-to-numpy",
    summary="A sparse tensor was handed to numpy.",
    what="""
Finds `A.numpy()` and `numpy.asarray(A)` on a sparse tensor.
""",
    told=(
        Told(
            title="A sparse tensor handed to numpy",
            happened="numpy knows dense arrays only.",
            write=(
                "Hand over `A.coalesce().values()` and `.indices()`, or a scipy matrix: "
                "`SparseTensor.from_torch(A).to_scipy()`. `A.to_dense().numpy()` if the matrix is small."
            ),
            says=(r"can't convert Sparse\w* layout tensor to numpy",),
            types=("TypeError",),
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3))
A.detach().numpy()
""",
    good="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3))
A = A.detach().coalesce()
where, what = A.indices().numpy(), A.values().numpy()
""",
    gradient="values.grad",
)
