from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM134",
    name="input-not-in-the-graph",
    summary="torch.autograd.grad was asked for a tensor that has no part in the output.",
    what="""
Finds an entry of `inputs` of `torch.autograd.grad` that the output was not computed from.
""",
    why="""
The graph goes by tensors, not by names. After `w = w * 1` or `w = w.to(device)` the name means a new tensor, and the one
that the computation used is another.
""",
    bad="""
import torch

w = torch.ones(3, requires_grad=True)
loss = (w * 2).sum()
w = w * 1
grad, = torch.autograd.grad(loss, w)
""",
    good="""
import torch

w = torch.ones(3, requires_grad=True)
loss = (w * 2).sum()
grad, = torch.autograd.grad(loss, w)
""",
    fix="""
`allow_unused=True` gives None for such tensors: right only where it is known that some take no part.
""",
    raises="not have been used in the graph",
    gradient="grad",
    right="torch.full((3,), 2.0)",
)
