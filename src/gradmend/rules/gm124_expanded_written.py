from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM124",
    name="expanded-tensor-written",
    summary="A tensor whose elements share memory (expand, broadcast_to, meshgrid) was written.",
    what="""
Finds an in-place op on the result of `expand`, `expand_as`, `broadcast_to`, `meshgrid` and other functions that repeat
elements without copying them.
""",
    why="""
Several elements of such a tensor are one and the same place in memory, so a write to one is a write to all of them, in
an order that nobody promises.
""",
    bad="""
import torch

x = torch.ones(1, 3, requires_grad=True)
rows = (x * 1).expand(4, 3)
rows += torch.arange(4.0)[:, None]
rows.sum().backward()
""",
    good="""
import torch

x = torch.ones(1, 3, requires_grad=True)
rows = (x * 1).expand(4, 3)
rows = rows + torch.arange(4.0)[:, None]
rows.sum().backward()
""",
    fix="""
Out of place, or on a `.clone()`, each element gets a place of its own: the full size is then really allocated.
""",
    raises="more than one element of the written-to tensor",
    right="torch.full((1, 3), 4.0)",
)
