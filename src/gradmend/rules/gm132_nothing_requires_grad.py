from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM132",
    name="backward-from-a-constant",
    summary="Backward was started from a tensor that no gradient flows into.",
    what="""
Finds `backward()` or `torch.autograd.grad` on a tensor that was not computed from anything that requires grad.
""",
    why="""
Something cut the graph on the way: `torch.no_grad()`, `.detach()`, `.data`, `.item()`, `torch.tensor(t)`, `argmax`, a round
trip through numpy, or parameters that were frozen. There is nothing to go back through.
""",
    bad="""
import torch

x = torch.ones(3, requires_grad=True)
loss = torch.tensor((x * 2).sum().item())
loss.backward()
""",
    good="""
import torch

x = torch.ones(3, requires_grad=True)
loss = (x * 2).sum()
loss.backward()
""",
    fix="""
Setting `requires_grad_()` on the loss silences the error and trains nothing: the cut itself must be found.
""",
    raises="does not require grad and does not have a grad_fn",
    right="torch.full((3,), 2.0)",
)
