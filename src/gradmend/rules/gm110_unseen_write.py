from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM110",
    name="unseen-write",
    summary="Something that Gradmend can't see into overwrote a value that backward needs.",
    what="""
Finds a saved tensor whose version counter moved although no Python call that Gradmend watches moved it: a
write in compiled code, in a C++ or CUDA extension, or by backward itself when it adds to a `.grad` that was
saved. Also a write, of any kind, after `watch()` or `heal()` was left and before the backward of what was computed inside.
""",
    why="""
The value is gone all the same, and going on would give a wrong gradient. Only the line can't be named: it
lies between the line that saved the tensor and the backward call, both of which are told.
""",
    bad="""
import torch

x = torch.tensor([1.0, 2.0], requires_grad=True)
(x * 3).sum().backward()
penalty = (x * x.grad).sum()  # keeps x.grad
(x * 2).sum().backward()      # adds to x.grad in place
penalty.backward()
""",
    good="""
import torch

x = torch.tensor([1.0, 2.0], requires_grad=True)
(x * 3).sum().backward()
penalty = (x * x.grad.clone()).sum()
(x * 2).sum().backward()
penalty.backward()
""",
    fix="""
Keep the `with` block open until backward() is done. Give the outside code a clone, or let it return a new tensor; clone a `.grad` before you compute with it.
Running once without `torch.compile` lets Gradmend name the line.
""",
    raises="modified by an inplace operation",
    right="[8.0, 8.0]",
)
