from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM208",
    name="checkpoint-reads-changed-value",
    summary="A checkpointed region runs again in backward and finds other values than in forward.",
    what="""
Finds writes between forward and backward to tensors that a `torch.utils.checkpoint` region reads: its
arguments, closed-over buffers, parameters, running statistics. A closed-over name or attribute that is bound to
another tensor in between counts too: the region looks it up again.
""",
    why="""
Checkpointing keeps no activations and computes them again in backward. Whatever the region reads must still
be as it was; PyTorch compares shapes, not values, and goes on.
""",
    bad="""
import torch
from torch.utils.checkpoint import checkpoint

x = torch.tensor([1.0, 2.0], requires_grad=True)
scale = torch.tensor(2.0)
y = checkpoint(lambda t: (t * scale) ** 2, x, use_reentrant=False)
scale.fill_(5.0)
y.sum().backward()
""",
    good="""
import torch
from torch.utils.checkpoint import checkpoint

x = torch.tensor([1.0, 2.0], requires_grad=True)
scale = torch.tensor(2.0)
y = checkpoint(lambda t, scale: (t * scale) ** 2, x, scale, use_reentrant=False)
scale = torch.tensor(5.0)
y.sum().backward()
""",
    fix="""
Pass what the region reads as an argument, and bind a new tensor instead of writing the old one; or write
after the backward. Healing can't help here, since the old value is read by a forward, not handed to a
backward: Gradmend stops instead.
""",
    right="8 * x",
)
