from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM133",
    name="kept-tensor-detached",
    summary="A tensor that an op kept for backward was cut from its graph by detach_().",
    what="""
Finds `detach_()` on a tensor that an earlier op keeps for its backward.
""",
    why="""
Backward needs the kept tensor with its place in the graph. `detach_()` took that place away after the op had been
recorded.
""",
    bad="""
import torch

x = torch.ones(3, requires_grad=True)
y = x * 2
z = (y * y).sum()
y.detach_()
z.backward()
""",
    good="""
import torch

x = torch.ones(3, requires_grad=True)
y = x * 2
z = (y * y).sum()
y = y.detach()
z.backward()
""",
    fix="""
`detach()` returns a new tensor without a graph; what was computed before keeps its gradient.
""",
    raises="saved tensor that has been detached in-place",
    right="8 * x",
)
