from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM107",
    name="inplace-flag",
    summary="A module or functional with inplace=True overwrote a value that the op before it had kept.",
    what="""
Finds writes made by `nn.ReLU(inplace=True)`, `nn.Dropout(inplace=True)`, `F.elu(x, inplace=True)` and their
like to a tensor that an earlier op needs: its result (tanh, sigmoid, softmax, another activation), or a
residual that was used before.
""",
    why="""
The flag saves one tensor of memory and is safe after layers that don't keep their result, such as Linear,
Conv and BatchNorm. After one that does, or on a tensor that was read before, it destroys what backward
needs. The line that wrote lies inside torch.nn; the line to change is where the module was built.
""",
    bad="""
import torch

x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
act = torch.nn.ReLU(inplace=True)
y = act(torch.tanh(x))
y.sum().backward()
""",
    good="""
import torch

x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
act = torch.nn.ReLU()
y = act(torch.tanh(x))
y.sum().backward()
""",
    fix="""
Dropping `inplace=True` never changes the result; it costs the memory of one activation. For modules of a
library that is not yours, set `module.inplace = False` after building the model.
""",
    raises="modified by an inplace operation",
    right="(1 - torch.tanh(x) ** 2) * (x > 0)",
)
