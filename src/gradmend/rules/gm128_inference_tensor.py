from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM128",
    name="inference-tensor-in-autograd",
    summary="A tensor made under inference_mode was used in a computation that needs a gradient.",
    what="""
Finds tensors from a `torch.inference_mode()` block that an op would keep for backward, that are written outside the
block, or that are made to require grad.
""",
    why="""
Such tensors have no version counter, so autograd could not tell whether a kept one was changed. PyTorch therefore never
lets one in.
""",
    bad="""
import torch

x = torch.ones(3, requires_grad=True)
with torch.inference_mode():
    scale = torch.full((3,), 2.0)
(x * scale).sum().backward()
""",
    good="""
import torch

x = torch.ones(3, requires_grad=True)
with torch.no_grad():
    scale = torch.full((3,), 2.0)
(x * scale).sum().backward()
""",
    fix="""
`torch.no_grad()` gives the same values at a little more cost for each op. Where the block can't be changed, `.clone()`
outside it makes an ordinary tensor.
""",
    raises="Inference tensors cannot be saved for backward",
    right="torch.full((3,), 2.0)",
)
