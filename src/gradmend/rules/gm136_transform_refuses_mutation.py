from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM136",
    name="transform-refuses-mutation",
    summary="A function under a `torch.func` transform writes in place to a tensor that the transform can't change.",
    what="""
Finds, under `grad`, `vjp`, `jvp` and `vmap` of `torch.func`: a write to a tensor that the function captures from outside,
a batched value written into a tensor that has no batch, and BatchNorm's running statistics under `vmap`.
""",
    why="""
A transform calls the function with tensors of its own, one level above the captured ones. A captured tensor has no place
for what the transform keeps: a gradient's history, or one value for each sample of the batch.
""",
    bad="""
import torch
from torch.func import grad

state = torch.zeros(3)


def loss(x):
    state.add_(x)
    return state.pow(2).sum()


g = grad(loss)(torch.ones(3))
""",
    good="""
import torch
from torch.func import grad

state = torch.zeros(3)


def loss(x):
    new = state + x
    return new.pow(2).sum()


g = grad(loss)(torch.ones(3))
""",
    fix="""
Compute a new tensor, and return it beside the result where it is to last (`has_aux=True` hands it out). A buffer that is filled
under `vmap` is made from a batched input: `x.new_zeros(3)`, or the pieces are collected and stacked. For BatchNorm,
`torch.func.replace_all_batch_norm_modules_(net)` or `net.eval()`.
""",
    raises="would mutate a captured Tensor",
    gradient="g",
    right="torch.full((3,), 2.0)",
)
