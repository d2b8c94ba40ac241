from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM129",
    name="overlapping-read-and-write",
    summary="One in-place op reads and writes overlapping memory.",
    what="""
Finds `x[1:] = x[:-1]`, `x[1:].add_(x[:-1])` and other writes whose input is partly the memory they write.
""",
    why="""
The result would depend on the order in which elements are copied: the second may read what the first has just
overwritten. PyTorch refuses where it can tell.
""",
    bad="""
import torch

x = torch.ones(4, requires_grad=True)
y = x * 1
y[1:] = y[:-1]
y.sum().backward()
""",
    good="""
import torch

x = torch.ones(4, requires_grad=True)
y = x * 1
y[1:] = y[:-1].clone()
y.sum().backward()
""",
    fix="""
A clone of the side that is read has the values from before the write, which is what such a line almost always means.
""",
    raises="some elements of the input tensor and the written-to tensor refer to a single memory location",
    right="torch.tensor([2.0, 1.0, 1.0, 0.0])",
)
