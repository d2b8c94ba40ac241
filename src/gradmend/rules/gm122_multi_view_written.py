from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM122",
    name="multi-view-output-written",
    summary="One of several views that a single call returned (split, chunk, unbind, iteration) was written.",
    what="""
Finds an in-place op on a piece that `split`, `chunk`, `unbind`, iterating over a tensor, or a custom Function with
several outputs returned.
""",
    why="""
Autograd follows a write through a view back to its base. For views that come several from one call there is one node
for all of them, which can't be rewritten for one, so PyTorch refuses.
""",
    bad="""
import torch

x = torch.ones(4, requires_grad=True)
a, b = (x * 1).chunk(2)
a *= 3
(a + b).sum().backward()
""",
    good="""
import torch

x = torch.ones(4, requires_grad=True)
a, b = (x * 1).chunk(2)
a = a * 3
(a + b).sum().backward()
""",
    fix="""
Out of place, the tensor that was cut keeps its old values: right where only the pieces are used afterwards. Where the
whole must change too, write through a slice of it (`x[:2] *= 3`, `h[i] *= 2`): such a view comes alone, and may be
written.
""",
    raises="output of a function that returns multiple views",
    right="torch.tensor([3.0, 3.0, 1.0, 1.0])",
)
