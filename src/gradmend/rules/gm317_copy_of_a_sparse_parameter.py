from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM317",
    name="copy-of-a-sparse-parameter",
    summary="A sparse parameter was copied, or a CSR result was to keep its gradient.",
    what="""
Finds `copy.deepcopy` of a sparse `nn.Parameter`, and other copies that ask for a memory format.
""",
    told=(
        Told(
            title="A copy of a sparse parameter or gradient",
            happened=(
                "Copying asks for a memory format ({form}), and sparse tensors have none: deepcopy of a sparse "
                "nn.Parameter and retain_grad() of a CSR tensor end here."
            ),
            write=(
                "Keep the values as the nn.Parameter and the pattern beside it (SparseTensor): deepcopy, "
                "state_dict and checkpoints then work."
            ),
            says=(r"unsupported memory format option (?P<form>Preserve|Contiguous)",),
            sure=False,
        ),
    ),
    bad="""
import copy

import torch

A = torch.eye(3).to_sparse()
weight = torch.nn.Parameter(A)
copy.deepcopy(weight)
""",
    good="""
import copy

import torch

from gradmend.sparse import Pattern
from gradmend.sparse.nn import SparseWeight

weight = SparseWeight(Pattern([[0, 1, 2], [0, 1, 2]], (3, 3)))
twin = copy.deepcopy(weight)
(twin() @ torch.ones(3, 2)).sum().backward()
""",
    gradient="twin.values.grad",
    right="torch.full((3,), 2.0)",
)
