from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM302",
    name="write-into-sparse-values",
    summary="A write into the values() of a sparse tensor broke its backward.",
    what="""
Finds in-place changes of `A.values()` where a gradient is to flow through A.
""",
    told=(
        Told(
            title="A write into the values() of a sparse tensor",
            happened=(
                "values() is a view that autograd follows into the sparse tensor. The write itself went through; "
                "its backward has to write into a gradient that is one number expanded to every place, and can't."
            ),
            write=(
                "Change the values before the tensor is built, out of place: `v = v + step; A = "
                "torch.sparse_coo_tensor(indices, v, size)`. With gradmend.sparse.SparseTensor: `S = S.map(lambda"
                " v: v + step)`."
            ),
            says=(
                r"more than one element of the written-to tensor refers to a single memory location",
                r"Could not run 'aten::new_empty_strided' with arguments from the 'Sparse\w*' backend",
            ),
            sure=False,
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3)).coalesce()
A.values()[1] += 1
A.sum().backward()
""",
    good="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
values_now = values + torch.tensor([0.0, 1.0, 0.0])
A = torch.sparse_coo_tensor(indices, values_now, (2, 3))
A.sum().backward()
""",
    gradient="values.grad",
    right="torch.ones(3)",
)
