from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM212",
    name="gradient-reference-kept",
    summary="A reference to .grad was kept as the gradient of one loss, and the next backward added to it.",
    what="""
Finds `.grad` of a parameter that is kept under another name, read again after one more backward, and never cloned: gradients
of several losses that are compared, projected or averaged. Told by `gradmend check` alone.
""",
    why="""
A parameter has one gradient tensor, and every backward adds to it where it lies. A second name for it is no copy: it shows
the sum of all losses so far.
""",
    bad="""
import torch

w = torch.tensor([1.0, 2.0], requires_grad=True)
(w * 2).sum().backward()
first = w.grad
(w * 3).sum().backward()
x = first * 1.0
""",
    good="""
import torch

w = torch.tensor([1.0, 2.0], requires_grad=True)
(w * 2).sum().backward()
first = w.grad.clone()
(w * 3).sum().backward()
x = first * 1.0
""",
    fix="""
A clone costs the memory of one gradient. `torch.autograd.grad` gives gradients of its own and leaves .grad alone;
`zero_grad()`, which by default lets go of the old tensor, is enough where each loss has its own turn.
""",
    gradient="x",
    right="torch.full((2,), 2.0)",
    static=True,
)
