from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM205",
    name="tensor-on-ctx",
    summary="A custom Function kept a tensor as an attribute of ctx, where nothing guards it.",
    what="""
Finds `ctx.x = tensor` in the forward of an `autograd.Function` whose backward uses it after the tensor has
been overwritten.
""",
    why="""
`ctx.save_for_backward` records the version and checks it; an attribute does neither. A later in-place write
to the tensor changes the gradient without a word. For an input or output it also makes a reference cycle,
which leaks the graph.
""",
    bad="""
import torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.x * grad


x = torch.tensor([1.0, 2.0], requires_grad=True)
h = x.clone()
y = Square.apply(h)
h += 1
y.sum().backward()
""",
    good="""
import torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


x = torch.tensor([1.0, 2.0], requires_grad=True)
h = x.clone()
y = Square.apply(h)
h = h + 1
y.sum().backward()
""",
    fix="""
`save_for_backward` is always right for inputs and outputs, and makes PyTorch raise where this rule is
broken; the write itself must still go out of place. Tensors that are neither input nor output may be saved
so too.
""",
    right="2 * x",
)
