from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM123",
    name="no-grad-view-written",
    summary="A view that was made under no_grad or inference_mode was written outside.",
    what="""
Finds a slice or another view that is made inside a `torch.no_grad()` or `torch.inference_mode()` block, and written in
place after the block.
""",
    why="""
Inside the block nothing is tracked, outside everything is. For a view made in one and written in the other PyTorch can't
tell whether the write should count for the gradient.
""",
    bad="""
import torch

x = torch.ones(4, requires_grad=True)
y = x * 1
with torch.no_grad():
    tail = y[1:]
tail *= 3
y.sum().backward()
""",
    good="""
import torch

x = torch.ones(4, requires_grad=True)
y = x * 1
tail = y[1:]
tail *= 3
y.sum().backward()
""",
    fix="""
There are two ways out and they mean different things: with the view made outside, the write counts for the gradient;
with the write moved into the block, it does not. Which one is meant only the author knows.
""",
    raises="view was created in (no_grad|inference) mode",
    right="torch.tensor([1.0, 3.0, 3.0, 3.0])",
)
