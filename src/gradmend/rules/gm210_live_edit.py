from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM210",
    name="live-edit-outside-autograd",
    summary="A tensor in the graph was edited behind autograd's back and then used again.",
    what="""
Finds writes through `.data`, NumPy or another hidden road to a tensor with history that later ops compute
with. Unlike GM201, nothing that was saved before is damaged.
""",
    why="""
The edit is part of the value and not of the graph. Every later op is differentiated as if the entries still
depended on the inputs as before: an entry that was set to a constant still passes its gradient on.
""",
    bad="""
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
h = x * 2
h.data[0] = 5.0
(h ** 2).sum().backward()
""",
    good="""
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
h = x * 2
h[0] = 5.0
(h ** 2).sum().backward()
""",
    fix="""
Make the edit in the open: `h[0] = 5.0` or `torch.where` are differentiated rightly. If the gradient is
meant to pass as if nothing had happened (a straight-through estimator), say so: `h = h + (edited -
h).detach()`.
""",
    right="torch.tensor([0.0, 16.0, 24.0])",
)
