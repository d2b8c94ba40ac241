from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM207",
    name="gradient-written-in-hook",
    summary="A hook or a custom backward changed the gradient it was given, which others still use.",
    what="""
Finds in-place writes to the gradient that a tensor hook, a module hook or the backward of an
`autograd.Function` receives.
""",
    why="""
Autograd hands one and the same gradient tensor to several nodes: both inputs of an addition get the same
memory. A hook that scales it in place scales it for all that come after, depending on the order in which
nodes happen to run.
""",
    bad="""
import torch

x = torch.tensor([1.0, 2.0], requires_grad=True)
a, b = x * 2, x * 3
b.register_hook(lambda grad: grad.mul_(10))
(a + b).backward(torch.ones(2))
""",
    good="""
import torch

x = torch.tensor([1.0, 2.0], requires_grad=True)
a, b = x * 2, x * 3
b.register_hook(lambda grad: grad * 10)
(a + b).backward(torch.ones(2))
""",
    fix="""
Returning a new tensor, from a hook or a custom backward, is always safe. Clipping and scaling of `.grad`
after backward, as optimizers do it, is not meant here and is fine.
""",
    right="torch.full_like(x, 32.0)",
)
