from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM105",
    name="parameter-updated-before-backward",
    summary="A parameter or buffer was changed by hand between the forward that used it and its backward.",
    what="""
Finds a write to a leaf (a parameter, a buffer, an input) after an op kept it: weight clipping, an
exponential moving average, a renormalised prototype, power iteration of spectral norm, a manual update
under `no_grad`.
""",
    why="""
`torch.no_grad()` only keeps the write itself out of the graph. It does not protect the values that an
earlier forward kept: backward needs the weight that the forward multiplied with.
""",
    bad="""
import torch

x = torch.tensor([1.0, 2.0], requires_grad=True)
w = torch.tensor([0.5, 3.0], requires_grad=True)
loss = (x * w).sum()
with torch.no_grad():
    w.clamp_(-1, 1)
loss.backward()
""",
    good="""
import torch

x = torch.tensor([1.0, 2.0], requires_grad=True)
w = torch.tensor([0.5, 3.0], requires_grad=True)
loss = (x * w).sum()
loss.backward()
with torch.no_grad():
    w.clamp_(-1, 1)
""",
    fix="""
Moving the update below the backward is safe where no forward in between is meant to see the new value.
Where one is, let the first forward use a clone (`(x * w.clone()).sum()`), which costs one copy of the
parameter.
""",
    raises="modified by an inplace operation",
    right="torch.tensor([0.5, 3.0])",
)
