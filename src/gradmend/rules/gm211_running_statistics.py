from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM211",
    name="running-statistics-changed",
    summary="BatchNorm's running statistics changed between a forward in eval mode and its backward.",
    what="""
Finds a train-mode pass through a normalisation layer, or any other update of its running statistics,
between an eval-mode forward of the same layer and the backward of that forward.
""",
    why="""
In eval mode the layer divides by the running deviation, and backward reads it again. The update in train
mode moves no version counter: no error, and a gradient scaled by the wrong deviation. In train mode the
running statistics are saved and never read, so nothing is wrong with two train-mode passes.
""",
    bad="""
import torch

norm = torch.nn.BatchNorm1d(1)
x = torch.tensor([[1.0], [2.0]], requires_grad=True)
y = norm.eval()(x)
norm.train()(torch.tensor([[0.0], [10.0], [20.0]]))
y.sum().backward()
""",
    good="""
import torch

norm = torch.nn.BatchNorm1d(1)
x = torch.tensor([[1.0], [2.0]], requires_grad=True)
y = norm.eval()(x)
y.sum().backward()
norm.train()(torch.tensor([[0.0], [10.0], [20.0]]))
""",
    fix="""
Do the backward of the eval-mode forward first, or give the two roles two layers (a copy made with
`copy.deepcopy`), as teacher and student usually have.
""",
    right="torch.full_like(x, (1 + 1e-5) ** -0.5)",
)
