from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM104",
    name="step-before-last-backward",
    summary="An optimizer changed its parameters before the last backward that needs their old values.",
    what="""
Finds an `optimizer.step()` between a forward and a backward of the same graph: two losses that share a
trunk, an actor and a critic with an optimizer each, a temperature stepped before the actor's loss.
""",
    why="""
`step()` writes the parameters in place. The second loss was computed with the old ones, and its gradient
must be too; what backward would find are the new ones. Older releases of PyTorch let this pass in silence,
which is why much published code has this order.
""",
    bad="""
import torch

w = torch.tensor([1.0, 2.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
h = w * w
first, second = h.sum(), (h ** 2).sum()
first.backward(retain_graph=True)
optimizer.step()
second.backward()
""",
    good="""
import torch

w = torch.tensor([1.0, 2.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
h = w * w
first, second = h.sum(), (h ** 2).sum()
first.backward(retain_graph=True)
second.backward()
optimizer.step()
""",
    fix="""
Moving `step()` below the last backward changes which gradients it applies: the parameters now also receive
those of the later losses, unless `zero_grad()` stands between or each backward is limited with `inputs=`.
To keep two separate steps, compute the second loss anew after the first one.
""",
    raises="modified by an inplace operation",
    gradient="w.grad",
    right="torch.tensor([6.0, 36.0])",
)
