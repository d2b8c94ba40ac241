"""A process whose first compilation ever runs under our taps: Dynamo must not keep them in its tables."""

import subprocess
import sys

import pytest

PROGRAM = """
import torch, gradmend
from torch import nn

def made():
    torch._dynamo.reset()
    graphs = []
    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    def body(x):
        y = model(x) * 2
        y += 1
        torch.Tensor.mul_(y, 3)
        y[0] = 0
        torch._foreach_add_([y], 1)
        return torch.cat([y, torch.full((1, 2), 2.0)]).sum()
    torch.compile(body, backend=backend, fullgraph=FULL)(torch.ones(3, 4)).backward()
    return len(graphs)

FULL = True
with gradmend.CONTEXT():
    inside = made()
print(inside, made(), made())
"""


@pytest.mark.parametrize("context", ["watch"])
def test_after_a_first_compilation_inside(context):
    text = PROGRAM.replace("CONTEXT", context)
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert ran.stdout == "1 1 1\n", ran.stderr[-2000:]


def test_what_can_be_overridden_is_torchs_own():
    """torch.overrides lists functions when first asked; asked inside, it must not keep our taps."""
    import torch

    import gradmend

    torch.overrides._get_overridable_functions.cache_clear()
    with gradmend.watch():
        torch.overrides.get_overridable_functions()
    listed = {f for functions in torch.overrides.get_overridable_functions().values() for f in functions}
    assert torch.add in listed and torch.Tensor.add_ in listed
    assert not [f for f in listed if hasattr(f, "__gradmend_original__")]
