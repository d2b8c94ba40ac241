from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM135",
    name="inplace-negative-slope",
    summary="An in-place leaky_relu, elu or celu with a negative slope was differentiated.",
    what="""
Finds `F.leaky_relu(x, slope, inplace=True)` and its like with a negative slope, when backward reaches them.
""",
    why="""
In place, backward has only the output, and tells from its sign which side of zero the input was on. With a negative slope
the output is positive on both sides.
""",
    bad="""
import torch
import torch.nn.functional as F

x = torch.tensor([-1.0, 2.0], requires_grad=True)
y = F.leaky_relu(x * 1, -0.5, inplace=True)
y.sum().backward()
""",
    good="""
import torch
import torch.nn.functional as F

x = torch.tensor([-1.0, 2.0], requires_grad=True)
y = F.leaky_relu(x * 1, -0.5)
y.sum().backward()
""",
    fix="""
Out of place, the op keeps its input, at the cost of one more tensor; values and gradient are right.
""",
    raises="triggered with a negative slope",
    right="torch.tensor([-0.5, 1.0])",
)
