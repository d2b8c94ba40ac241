from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM103",
    name="buffer-written-by-slices",
    summary="A buffer is written piece by piece while an earlier read of it is still needed by backward.",
    what="""
Finds writes to part of a tensor (`out[i] = ...`, `copy_` into a view) of which an op kept a region that
overlaps the part: typically a loop that fills a buffer and computes with the buffer as it goes.
""",
    why="""
Each round keeps the buffer as it stands, and the next round changes it under the kept view. The values of
the earlier rounds exist nowhere else, so their gradient can't be computed.
""",
    bad="""
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
out = torch.zeros(3)
total = 0.0
for i in range(3):
    out[i] = x[i] * 2
    total = total + (out ** 2).sum()
total.backward()
""",
    good="""
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
rows = []
total = 0.0
for i in range(3):
    rows.append(x[i] * 2)
    total = total + (torch.stack(rows) ** 2).sum()
total.backward()
""",
    fix="""
Collecting the pieces in a list and stacking them gives the same values and the right gradient, at the
memory of the pieces. Where the buffer must keep its shape, clone it where it is read (`(out.clone() **
2)`): one copy for each round. If the loop only ever reads pieces that it no longer writes, the gradient was
right all along: see GM109.
""",
    raises="modified by an inplace operation",
    right="torch.tensor([24.0, 32.0, 24.0])",
)
