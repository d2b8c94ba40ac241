from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM127",
    name="custom-function-view-written",
    summary="A view that a custom Function returned, or that passed a module's backward hook, was written.",
    what="""
Finds an in-place op on the output of a `torch.autograd.Function` that returns its input or a view of it, and on tensors
that a module with `register_full_backward_hook` took in or gave out.
""",
    why="""
Autograd follows a write to a view through the view's base. That road goes around the custom backward, whose gradient
would be lost, so PyTorch refuses. Backward hooks of modules are such Functions.
""",
    bad="""
import torch

net = torch.nn.Linear(3, 3, bias=False)
net.register_full_backward_hook(lambda module, grad_in, grad_out: None)
x = torch.ones(2, 3, requires_grad=True)
y = net(x)
y += 1
y.sum().backward()
""",
    good="""
import torch

net = torch.nn.Linear(3, 3, bias=False)
net.register_full_backward_hook(lambda module, grad_in, grad_out: None)
x = torch.ones(2, 3, requires_grad=True)
y = net(x)
y = y + 1
y.sum().backward()
""",
    fix="""
Out of place, or after a `.clone()`, values and gradient are what was meant. For a Function of one's own, `.clone()` in its
forward mends all its callers at once. `inplace=True` of a module that has such a hook must be dropped.
""",
    raises="This view was created inside a custom Function",
    right="net.weight.sum(0).expand(2, 3)",
)
