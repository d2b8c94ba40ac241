from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM201",
    name="data-write",
    summary="A write through .data changed a value that backward needs, and PyTorch could not notice.",
    what="""
Finds writes through `.data` (and through tensors made from it) to memory that an op kept for backward.
""",
    why="""
`.data` is a tensor of its own with a version counter of its own. Writing through it hides the change from
autograd: no error, and a gradient computed from the new value. `.detach()` shares the counter, so a write
through it at least raises.
""",
    bad="""
import torch

x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
y = x.exp()
loss = y.sum()
y.data.zero_()
loss.backward()
""",
    good="""
import torch

x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
y = x.exp()
loss = y.sum()
y = torch.zeros_like(y)
loss.backward()
""",
    fix="""
Bind a new tensor instead of writing the old one, or write after the backward. Where the change is meant to be
part of the computation, make it out of place and in the open (`y = y + shift`), so that it is part of the graph.
""",
    right="x.exp()",
)
