from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM130",
    name="metadata-change-refused",
    summary="A tensor that requires grad was to be resized, retyped, or told not to require grad.",
    what="""
Finds `resize_` on a tensor that requires grad, `.data =` with another layout, device or an integer type, and
`requires_grad_(False)` on a computed tensor.
""",
    why="""
A gradient has the shape, type and place of its tensor. Changing those under a graph that is already recorded would leave
a gradient that fits nothing.
""",
    bad="""
import torch

x = torch.ones(4, requires_grad=True)
y = x * 2
y.resize_(2)
y.sum().backward()
""",
    good="""
import torch

x = torch.ones(4, requires_grad=True)
y = x * 2
y = y[:2]
y.sum().backward()
""",
    fix="""
A new tensor (a slice, `.to(...)`, `.detach()`) in place of the changed one is always tracked rightly. Other names for the
old tensor keep the old one.
""",
    raises="cannot resize variables that require grad",
    right="torch.tensor([2.0, 2.0, 0.0, 0.0])",
)
