from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM110",
    name="unseen-write",
    summary="Something that Gradmend can't see into overwrote a value that backward needs.",
    what="""
Finds a saved tensor whose version counter moved although no Python call that Gradmend watches moved it: a
write in TorchScript, in compiled code, in a C++ or CUDA extension, or by backward itself when it adds to a
`.grad` that was saved.
""",
    why="""
The value is gone all the same, and going on would give a wrong gradient. Only the line can't be named: it
lies between the line that saved the tensor and the backward call, both of which are told.
""",
    bad="""
import torch

bump = torch.jit.CompilationUnit('''
def bump(t):
    t.add_(1)
''').bump

x = torch.tensor([0.0, 1.0], requires_grad=True)
y = x.exp()
bump(y)
y.sum().backward()
""",
    good="""
import torch

bump = torch.jit.CompilationUnit('''
def bump(t):
    return t + 1
''').bump

x = torch.tensor([0.0, 1.0], requires_grad=True)
y = x.exp()
y = bump(y)
y.sum().backward()
""",
    fix="""
Give the outside code a clone, or let it return a new tensor. Running once without `torch.compile` or
`torch.jit` lets Gradmend name the line.
""",
    raises="modified by an inplace operation",
    right="x.exp()",
)
