from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM120",
    name="custom-function-writes-its-input",
    summary="A custom Function writes to its input in a way that autograd can't follow.",
    what="""
Finds a `torch.autograd.Function` that marks an input with `ctx.mark_dirty` and does not return it, or that writes to an
input which is a view while it returns more than one tensor.
""",
    why="""
Autograd hangs a Function's backward on the tensors that `forward` returns. A written input that is not among them has
no place in the graph for the Function's backward, and a written view would need one such place for its whole base.
""",
    bad="""
import torch

class AddOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.mark_dirty(t)
        t.add_(1)
        return t * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2

x = torch.ones(3, requires_grad=True)
AddOne.apply(x.clone()).sum().backward()
""",
    good="""
import torch

class AddOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.mark_dirty(t)
        t.add_(1)
        return t

    @staticmethod
    def backward(ctx, grad):
        return grad

x = torch.ones(3, requires_grad=True)
(AddOne.apply(x.clone()) * 2).sum().backward()
""",
    fix="""
Returning the written tensor, and doing the rest outside, keeps the values and the gradient. Where the Function need
not write at all, computing out of place and dropping `mark_dirty` is the simplest change, at the cost of one copy.
""",
    raises="marked as dirty during the forward method were not returned",
    right="torch.full((3,), 2.0)",
)
