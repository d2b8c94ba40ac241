from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM125",
    name="out-argument-with-grad",
    summary="A function was given out= while one of its arguments requires grad.",
    what="""
Finds calls like `torch.mul(a, b, out=buf)` in grad mode, where `a`, `b` or `buf` requires grad.
""",
    why="""
`out=` writes the result into memory that autograd knows nothing of. There is no derivative for that form, so PyTorch
refuses rather than lose the gradient.
""",
    bad="""
import torch

x = torch.ones(3, requires_grad=True)
buf = torch.empty(3)
torch.mul(x, 2, out=buf)
buf.sum().backward()
""",
    good="""
import torch

x = torch.ones(3, requires_grad=True)
buf = torch.mul(x, 2)
buf.sum().backward()
""",
    fix="""
Using the returned tensor keeps values and gradient. Other names for the buffer no longer see the result. Where no
gradient is wanted, `torch.no_grad()` around the call allows `out=`.
""",
    raises="functions with out=... arguments don't support automatic differentiation",
    right="torch.full((3,), 2.0)",
)
