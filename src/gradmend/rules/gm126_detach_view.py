from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM126",
    name="detach-inplace-on-view",
    summary="detach_() was called on a view.",
    what="""
Finds `detach_()` on a slice, on an output of split, chunk or unbind, or on any other view.
""",
    why="""
`detach_()` cuts a tensor from its graph, but a view belongs to its base: the base would go on to be tracked while a part
of it is not. PyTorch refuses.
""",
    bad="""
import torch

x = torch.ones(4, requires_grad=True)
a, b = (x * 2).split(2)
a.detach_()
(a * b).sum().backward()
""",
    good="""
import torch

x = torch.ones(4, requires_grad=True)
a, b = (x * 2).split(2)
a = a.detach()
(a * b).sum().backward()
""",
    fix="""
`detach()` returns a new tensor without a graph and leaves the view alone. Values are the same; other names for the view
still carry its gradient.
""",
    raises="Can't detach views in-place",
    right="torch.tensor([0.0, 0.0, 4.0, 4.0])",
)
