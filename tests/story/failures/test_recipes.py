"""What the message alone tells, tried on messages that the installed torch really gives."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
import torch
from broken_programs import fail

import gradmend
from gradmend.story.failures.explain import from_text
from gradmend.story.failures.versions import Mismatch, bare, op_from_node, read

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
x = torch.randn(4, 3, requires_grad=True)
def train(model, data, make, **options):
    opt = make(model.parameters(), lr=0.1, **options)
    loss = model(data).sum()
    loss.backward(retain_graph=True)
    opt.step()
    loss.backward()
"""

# (program, rule, words of the message)
ROWS = [
    ("y = x.relu()\ny += 1\ny.sum().backward()", "GM101", "the result of relu, float32[4, 3]"),
    ("y = x.softmax(1)\ny[0] = 0\ny.sum().backward()", "GM101", "the result of softmax"),
    ("y = x.double().sigmoid()\ny.mul_(2)\ny.sum().backward()", "GM101", "float64[4, 3]"),
    ("y = x * 1\nz = y.sin()\ny += 1\nz.sum().backward()", "GM102", "made by add, was kept by another op"),
    ("m = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))\ntrain(m, x, torch.optim.SGD)", "GM104", "an optimizer stepped"),
    ("m = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))\ntrain(m, x.expand(2, 4, 3), torch.optim.Adam)", "GM104", "an optimizer stepped"),
    ("m = nn.Conv2d(1, 2, 3)\ntrain(m, x.reshape(1, 1, 4, 3), torch.optim.SGD, foreach=False)", "GM104", "an optimizer stepped"),
    ("i = torch.tensor([0, 1])\nz = F.embedding(i, x)\ni += 1\nz.sum().backward()", "GM106", "the index tensor int64[2]"),
    ("m = torch.tensor([True, False, True])\nz = x.masked_fill(m, 0)\nm.logical_not_()\nz.sum().backward()", "GM106", "the mask bool[3]"),
    ("h = torch.zeros(9, 3)\nw = torch.ones(3, requires_grad=True)\nfor i in range(1, 9):\n    h[i] = h[i - 1] * w + w\nh.sum().backward()", "GM103", "a view, float32[3]"),
    ("w = torch.ones(3, requires_grad=True)\ny = (w * w).sum()\nwith torch.no_grad():\n    w -= 1\ny.backward()", "GM105", "a leaf or constant"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "rule", "words"), ROWS, ids=[r[0].splitlines()[0] for r in ROWS])
def test_the_recipe_is_recognised(tmp_path: Path, program: str, rule: str, words: str) -> None:
    exc, _, _ = fail(tmp_path, HEAD + program)
    text = "".join(traceback.format_exception(exc))
    conflict = from_text(text)
    assert conflict is not None, text
    assert conflict.rule == rule
    assert words in conflict.message
    assert any("gradmend run" in h for h in conflict.help)
    assert words in " ".join(gradmend.explain(exc).split())  # the same from the exception itself


def test_anomaly_mode_settles_who_kept_it(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Error detected") as caught, torch.autograd.set_detect_anomaly(True):
        exc, file, _ = fail(tmp_path, HEAD + "y = x * 1\nz = y.sin()\ny.relu_()\nz.sum().backward()")
    warned = next(w for w in caught if "Error detected" in str(w.message))
    conflict = from_text(f"UserWarning: {warned.message}\n" + "".join(traceback.format_exception(exc)))
    assert conflict is not None and conflict.saved is not None
    assert conflict.rule == "GM102"
    assert "made by relu, was kept by sin as its input" in conflict.message
    saved = conflict.saved.site.user
    assert saved is not None and saved.file == file
    assert "z = y.sin()" in Path(file).read_text().splitlines()[saved.line - 1]


MESSAGE = (
    "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: "
    "[{}]{} is at version {}; expected version {} instead. Hint: enable anomaly detection to find"
)


@pytest.mark.parametrize(
    ("tensor", "node", "dtype", "device", "name"),
    [
        ("torch.FloatTensor [64, 32]", ", which is output 0 of ReluBackward0,", "float32", "cpu", "Relu"),
        ("torch.cuda.FloatTensor [64, 32]", ", which is output 0 of Relu,", "float32", "cuda", "Relu"),
        ("torch.cuda.HalfTensor [8, 4, 4]", ", which is output 0 of SigmoidBackward,", "float16", "cuda", "Sigmoid"),
        ("CUDABFloat16Type [2, 3]", ", which is output 0 of AsStridedBackward0,", "bfloat16", "cuda", "AsStrided"),
        ("CUDALongTensor [5]", "", "int64", "cuda", ""),
        ("MPSFloatType [5]", "", "float32", "mps", ""),
        ("CPUComplexFloatType [5]", "", "complex64", "cpu", ""),
        ("torch.DoubleTensor []", ", which is output 0 of struct torch::autograd::CopySlices,", "float64", "cpu", "CopySlices"),
        ("SomeNewThing [5]", "", "", "cpu", ""),
    ],
)  # fmt: skip
def test_messages_of_other_devices_and_releases(
    tensor: str, node: str, dtype: str, device: str, name: str
) -> None:
    found = read(MESSAGE.format(tensor, node, 7, 3))
    assert found is not None
    assert (found.dtype, found.device, found.node) == (dtype, device, name)
    assert (found.version, found.expected, found.steps) == (7, 3, 4)
    assert from_text(MESSAGE.format(tensor, node, 7, 3)) is not None


def test_a_gap_of_many_versions_points_to_a_loop() -> None:
    conflict = from_text(MESSAGE.format("torch.FloatTensor [8]", ", which is output 0 of Tanh,", 40, 1))
    assert conflict is not None
    assert any("39 times since: look for a loop" in n for n in conflict.notes)


def test_a_message_that_is_cut_off_is_still_known() -> None:
    conflict = from_text(
        "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: [torch.cu"
    )
    assert conflict is not None
    assert any("cut off" in n for n in conflict.notes)


def test_a_message_pasted_with_fences_and_quotes_is_read() -> None:
    text = MESSAGE.format("torch.FloatTensor [5, 6]", ", which is output 0 of TBackward,", 2, 1)
    fenced = text.replace("operation: ", "operation: \n```\n```\n> ").replace(" is at", "\n```\n is at")
    conflict = from_text(fenced)
    assert conflict is not None and conflict.rule == "GM104"


def test_nodes_are_read_in_either_spelling() -> None:
    assert bare("ExpBackward0") == bare("Exp") == "Exp"
    assert op_from_node("ExpBackward0") == op_from_node("Exp") == "exp"
    assert op_from_node("MyThingBackward") == "MyThing"
    assert str(Mismatch((2, 3), "float32", "cpu", "", 0, 1, 0)) == "float32[2, 3]"


def test_the_node_of_scripted_code_has_a_cpp_name() -> None:
    """As torch 2.13 prints it for a tensor that comes out of a torch.jit.script'ed module."""
    told = read(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        "[torch.FloatTensor [2, 3]], which is output 3 of torch::jit::(anonymous namespace)::DifferentiableGraph, "
        "is at version 8; expected version 6 instead. Hint: enable anomaly detection"
    )
    assert told is not None
    assert (told.shape, told.version, told.expected) == ((2, 3), 8, 6)
    assert bare(told.node) == "DifferentiableGraph"
