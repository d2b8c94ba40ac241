from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM102",
    name="kept-input-overwritten",
    summary="An op kept one of its inputs for backward, and a later in-place op overwrote that input.",
    what="""
Finds a write to a tensor that an earlier op took as input and computes its gradient from: the factors of
mul, the operands of matmul, the base of pow, the input of a convolution, log, sin, and others.
""",
    why="""
The derivative of h ** 2 is 2 * h, with h as it was when the power was taken. After `h += 1` that value is
gone, and backward can only use the new one. PyTorch refuses by version counter, and its message names
neither `h` nor the line of the `+=`.
""",
    bad="""
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
h = x.clone()
y = h ** 2
h += 1
(y + h).sum().backward()
""",
    good="""
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
h = x.clone()
y = h ** 2
h = h + 1
(y + h).sum().backward()
""",
    fix="""
Rebinding (`h = h + 1`) leaves the kept tensor alone. It changes what other names for the old `h` see: where
a caller or a module attribute must see the new values too, clone where the value is kept instead (`y =
h.clone() ** 2`).
""",
    raises="modified by an inplace operation",
    right="2 * x + 1",
)
