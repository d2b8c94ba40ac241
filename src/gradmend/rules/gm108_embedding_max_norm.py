from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM108",
    name="embedding-max-norm",
    summary="A lookup in an embedding with max_norm renormalised the table after another op had kept it.",
    what="""
Finds the write that `nn.Embedding(..., max_norm=...)` and `F.embedding(..., max_norm=...)` make to their
weight in forward: the looked-up rows that are too long are scaled down in place.
""",
    why="""
It looks like a read and is a write. An op that used the weight before (a tied output layer, a penalty,
another lookup and product) kept the table as it was.
""",
    bad="""
import torch

table = torch.nn.Embedding(3, 2, max_norm=1.0)
table.weight.data = torch.tensor([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]])
penalty = (table.weight ** 2).sum()
rows = table(torch.tensor([0]))
(penalty + rows.sum()).backward()
""",
    good="""
import torch

table = torch.nn.Embedding(3, 2, max_norm=1.0)
table.weight.data = torch.tensor([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]])
penalty = (table.weight.clone() ** 2).sum()
rows = table(torch.tensor([0]))
(penalty + rows.sum()).backward()
""",
    fix="""
Cloning the weight where it is kept leaves all values as they are and costs one copy of the table. Doing the
lookup first is cheaper, and changes the result: the other op then sees the renormalised table.
""",
    raises="modified by an inplace operation",
    gradient="table.weight.grad",
    right="torch.tensor([[7.0, 9.0], [0.0, 2.0], [2.0, 0.0]])",
)
