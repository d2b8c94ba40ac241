from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM109",
    name="refused-but-right",
    summary="PyTorch refuses this program although no byte that backward reads has changed.",
    what="""
Tells the false alarms of the version counter: a write to another part of the same memory, a write that left
the values as they were (`relu_` of a relu), a change of shape alone (`squeeze_`), or a write to something
that was saved but that backward never looks at.
""",
    why="""
PyTorch counts versions per storage, not per element: `h[1] = 5` looks like a change of `h[0]` too. The
gradient would have been right. Under `gradmend.watch()` and `gradmend.heal()` such a program just runs.
""",
    bad="""
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
h = x.clone()
y = h[0] ** 2
h[1] = 5.0
y.backward()
""",
    good="""
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
h = x.clone()
y = h[0].clone() ** 2
h[1] = 5.0
y.backward()
""",
    fix="""
For plain PyTorch, clone the part that is kept; that never changes a result. Nothing needs to be changed for
a run under Gradmend.
""",
    raises="modified by an inplace operation",
    right="torch.tensor([2.0, 0.0, 0.0])",
)
