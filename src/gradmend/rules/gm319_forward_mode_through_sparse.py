from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM319",
    name="forward-mode-through-sparse",
    summary="PyTorch has no forward-mode rule for sparse tensors.",
    what="""
Finds `torch.func.jvp`, `jacfwd` and `hessian` through a sparse constructor.
""",
    told=(
        Told(
            title="Forward-mode differentiation through a sparse tensor",
            happened="PyTorch has no forward-mode rule for the constructors of sparse tensors.",
            write="Use gradmend.sparse.SparseTensor: torch.func.jvp, jacfwd and hessian pass through it.",
            says=(r"Trying to use forward AD with _?sparse_\w+ that does not support it",),
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])


def f(values):
    return torch.sparse_coo_tensor(indices, values, (2, 3)) @ torch.ones(3, 1)


torch.func.jvp(f, (torch.ones(3),), (torch.ones(3),))
""",
    good="""
import torch

from gradmend.sparse import SparseTensor

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])


def f(values):
    return SparseTensor.from_coo(indices, values, (2, 3)) @ torch.ones(3, 1)


out, tangent = torch.func.jvp(f, (torch.ones(3),), (torch.ones(3),))
""",
    gradient="tangent",
    right="torch.tensor([[1.0], [2.0]])",
)
