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
y.data.add_(1)
y.sum().backward()
""",
    good="""
import torch

x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
y = x.exp()
y = y + 1
y.sum().backward()
""",
    fix="""
Write out of place, so that the change is part of the graph. If it must not be (a constant shift, a mask),
use `y = y + shift` with a `shift` that needs no gradient; never `.data`.
""",
    right="x.exp()",
)
