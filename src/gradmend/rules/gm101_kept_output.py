from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM101",
    name="kept-output-overwritten",
    summary="An op kept its own output for backward, and a later in-place op overwrote that output.",
    what="""
Finds a write to the result of an op that computes its gradient from that result: exp, sigmoid, tanh, relu, sqrt,
softmax, and others. `gradmend saves OP` says what an op keeps.
""",
    why="""
The derivative of exp(x) is exp(x), so PyTorch keeps the output rather than compute it again. Once `y += 1` has
changed it, backward can only multiply by the wrong number; PyTorch notices by the tensor's version counter and
refuses, naming neither the tensor nor the line that wrote.
""",
    bad="""
import torch

x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
y = x.exp()
y += 1
y.sum().backward()
""",
    good="""
import torch

x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
y = x.exp()
y = y + 1
y.sum().backward()
""",
    fix="""
Rebinding (`y = y + 1`) is safe where no other name refers to the old tensor; if one does, it keeps the old values.
It costs the memory of one more tensor. Cloning before the write gives the same gradient.
""",
    raises="modified by an inplace operation",
    right="x.exp()",
)
