from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM204",
    name="data-assigned",
    summary="Other memory was put under a parameter (.data =, set_) that an op had kept.",
    what="""
Finds `parameter.data = tensor` and `set_` on a tensor that backward will ask for: loading target weights,
swapping weights for an evaluation, binarised weights put back too early.
""",
    why="""
Some ops keep the parameter itself and find the new memory under it; convolutions do. Others keep a view of
the old memory (a Linear keeps the transposed weight) and are not harmed. PyTorch says nothing in either
case.
""",
    bad="""
import torch

conv = torch.nn.Conv1d(1, 1, 1, bias=False)
conv.weight.data = torch.full((1, 1, 1), 2.0)
x = torch.tensor([[[1.0, 2.0, 3.0]]], requires_grad=True)
y = conv(x)
conv.weight.data = torch.full((1, 1, 1), 5.0)
y.sum().backward()
""",
    good="""
import torch

conv = torch.nn.Conv1d(1, 1, 1, bias=False)
conv.weight.data = torch.full((1, 1, 1), 2.0)
x = torch.tensor([[[1.0, 2.0, 3.0]]], requires_grad=True)
y = conv(x)
y.sum().backward()
conv.weight.data = torch.full((1, 1, 1), 5.0)
""",
    fix="""
Assign after the backward. To run a module with other weights for one call, use
`torch.func.functional_call(module, weights, args)`, which touches no parameter.
""",
    right="torch.full_like(x, 2.0)",
)
