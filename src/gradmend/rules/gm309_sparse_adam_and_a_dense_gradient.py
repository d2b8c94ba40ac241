from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM309",
    name="sparse-adam-and-a-dense-gradient",
    summary="SparseAdam was given a parameter whose gradient is dense.",
    what="""
Finds dense gradients among the parameters of `torch.optim.SparseAdam`.
""",
    told=(
        Told(
            title="SparseAdam and a dense gradient",
            happened="SparseAdam takes parameters with COO gradients only, and one of its parameters has a dense one.",
            write=(
                "Give the dense parameters to another optimizer: SparseAdam for `[embedding.weight]`, Adam for "
                "the others."
            ),
            says=(r"SparseAdam does not support dense gradients",),
        ),
    ),
    bad="""
import torch

weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SparseAdam([weight])
weight.sum().backward()
optimizer.step()
""",
    good="""
import torch

weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.Adam([weight])
weight.sum().backward()
optimizer.step()
""",
    gradient="weight.grad",
    right="torch.ones(3)",
)
