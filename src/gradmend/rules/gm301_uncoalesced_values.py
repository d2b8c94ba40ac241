from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM301",
    name="uncoalesced-values",
    summary="The values or indices of a sparse tensor were asked for before it was coalesced.",
    what="""
Finds `A.values()` and `A.indices()` on a COO tensor that may store a place twice.
""",
    told=(
        Told(
            title="{part}() of an uncoalesced sparse tensor",
            happened=(
                "A COO tensor may store a place more than once, and is uncoalesced until those entries are "
                "summed. Until then PyTorch hands out neither values() nor indices(). Sparse tensors can be read "
                "and changed; it is only this one's duplicates that are in the way."
            ),
            write=(
                "Write `A = A.coalesce()` and use A.{part}(), or keep the tensor of values that A was built from "
                "and use that: gradients go to it, duplicates included. gradmend.sparse.SparseTensor is always "
                "coalesced."
            ),
            says=(r"Cannot get (?P<part>values|indices) on an uncoalesced tensor",),
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3))
A.values().sum().backward()
""",
    good="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3)).coalesce()
A.values().sum().backward()
""",
    gradient="values.grad",
    right="torch.ones(3)",
)
