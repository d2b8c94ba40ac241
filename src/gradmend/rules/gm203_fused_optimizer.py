from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM203",
    name="fused-step-before-backward",
    summary="A fused optimizer changed its parameters before the last backward, and PyTorch could not notice.",
    what="""
Finds `step()` of an optimizer built with `fused=True` between a forward and a backward that needs the
parameters.
""",
    why="""
The same mistake as GM104, without its error: the fused kernels on the CPU write the parameters and leave
the version counter alone, so that backward goes on with the new weights.
""",
    bad="""
import torch

w = torch.tensor([1.0, 2.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1, fused=True)
h = w * w
first, second = h.sum(), (h ** 2).sum()
first.backward(retain_graph=True)
optimizer.step()
second.backward()
""",
    good="""
import torch

w = torch.tensor([1.0, 2.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1, fused=True)
h = w * w
first, second = h.sum(), (h ** 2).sum()
first.backward(retain_graph=True)
second.backward()
optimizer.step()
""",
    fix="""
As for GM104: moving `step()` below the last backward changes which gradients it applies. `fused=False`
makes PyTorch raise instead of going on.
""",
    gradient="w.grad",
    right="torch.tensor([6.0, 36.0])",
)
