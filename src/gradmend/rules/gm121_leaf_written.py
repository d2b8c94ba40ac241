from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM121",
    name="leaf-written-in-grad-mode",
    summary="A leaf that requires grad, or a view of one, was written in grad mode.",
    what="""
Finds `w -= lr * w.grad`, `w[0] = 0`, `w.clamp_(...)` and the like on a parameter, or on any tensor made with
`requires_grad=True`, outside `torch.no_grad()`.
""",
    why="""
A leaf is where backward puts a gradient. Written in grad mode it would be the result of an op, and a leaf no more: its
`.grad` would stay empty, so PyTorch refuses at once.
""",
    bad="""
import torch

w = torch.ones(3, requires_grad=True)
(w * w).sum().backward()
w -= 0.1 * w.grad
""",
    good="""
import torch

w = torch.ones(3, requires_grad=True)
(w * w).sum().backward()
with torch.no_grad():
    w -= 0.1 * w.grad
""",
    fix="""
For an update, `torch.no_grad()` is what is meant, and what the optimizers do themselves. Where the write is part of the
computation it must count for the gradient: then write to `w.clone()`, or out of place. `.data` would also silence the
error, but hides the write from backward's own check.
""",
    raises="leaf Variable that requires grad",
    gradient="w.grad",
    right="torch.full((3,), 2.0)",
)
