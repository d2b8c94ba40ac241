from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM206",
    name="missing-mark-dirty",
    summary="The forward of a custom Function wrote its input and did not say so.",
    what="""
Finds an `autograd.Function` whose forward changes an input in place without `ctx.mark_dirty(input)`.
""",
    why="""
Autograd then believes that the input still is what it was: whatever uses it afterwards gets the gradient of
the old tensor, as if the write had not been part of the computation.
""",
    bad="""
import torch


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x *= 2
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


x = torch.tensor([1.0, 2.0], requires_grad=True)
h = x.clone()
y = Double.apply(h)
(y + h).sum().backward()
""",
    good="""
import torch


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x *= 2
        return x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


x = torch.tensor([1.0, 2.0], requires_grad=True)
h = x.clone()
y = Double.apply(h)
(y + h).sum().backward()
""",
    fix="""
`mark_dirty` is right where callers count on the write; the input must then be returned. Otherwise work on a
copy in forward (`x = x * 2`), which is simpler and also works under `torch.func`.
""",
    right="torch.full_like(x, 4.0)",
)
