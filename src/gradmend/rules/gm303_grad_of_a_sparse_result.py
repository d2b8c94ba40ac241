from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM303",
    name="grad-of-a-sparse-result",
    summary="The .grad of a sparse tensor that was built from values is None: the gradient is in the values.",
    what="""
Finds `A.grad` of a sparse tensor that is no leaf.
""",
    told=(
        Told(
            title="The .grad of a tensor that is no leaf",
            happened=(
                "A sparse tensor built from values that require grad is a result, not a leaf: backward() passes "
                "through it and leaves its .grad None. The gradient is in the .grad of the values, an ordinary "
                "dense vector with one number per stored entry."
            ),
            write=(
                "Read `values.grad`, not `A.grad`: it can be clipped, edited and stepped by every optimizer. To "
                "see the gradient of A itself, call A.retain_grad() before backward()."
            ),
            says=(r"\.grad attribute of a Tensor that is not a leaf Tensor is being accessed",),
            types=("UserWarning",),
            sure=False,
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3))
A.sum().backward()
A.grad.clamp_(max=0.5)
""",
    good="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3))
A.sum().backward()
values.grad.clamp_(max=0.5)
""",
    raises="'NoneType' object has no attribute 'clamp_'",
    gradient="values.grad",
    right="torch.full((3,), 0.5)",
)
