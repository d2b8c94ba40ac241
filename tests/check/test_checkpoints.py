"""Checkpointed functions: what runs again in backward, and how far. The installed torch says what comes of each program."""

from __future__ import annotations

import pytest
import torch

from gradmend.check.files import check_file

PROGRAM = """\
import torch
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
x = torch.tensor([1.0, -1.0, 2.0], requires_grad=True)
layer = torch.nn.Linear(3, 3)
def f(x):
    {body}
y = checkpoint(f, x, use_reentrant={again})
{after}
y.sum().backward()
"""
BODIES = [
    ("h = torch.relu(x * 2); h += x; return h", "right"),
    ("h = torch.sigmoid(x * 2); g = h * x; h += 2; return g + h", "right"),
    ("return x.exp()", "right"),
    ("h = torch.sigmoid(x * 2); h *= 2; return h.sin()", "wrong"),
    ("h = torch.sigmoid(x * 2); g = h * x; h += 2; return g.exp()", "wrong"),
    ("h = torch.sigmoid(x * 2); h *= 2; return layer(h)", "wrong"),
    ("h = torch.sigmoid(x * 2); h *= 2; return h.max(0)[0]", "wrong"),
]


def outcome(source: str, plain: str) -> str:
    right: dict = {}
    exec(plain, right)
    space: dict = {}
    try:
        exec(source, space)
    except RuntimeError as error:
        return "refused" if "inplace" in str(error) else str(error)
    return "right" if torch.allclose(space["x"].grad, right["x"].grad) else "wrong"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("after", ["", "y += 1"])
@pytest.mark.parametrize("again", ["False", "True"])
@pytest.mark.parametrize(("body", "anew"), BODIES)
def test_a_write_inside(body: str, anew: str, again: str, after: str) -> None:
    """With use_reentrant=False the second run ends once all is kept again, and its hooks ask no counter."""
    source = PROGRAM.format(body=body, again=again, after=after)
    plain = PROGRAM.format(
        body=body.replace("h += x", "h = h + x").replace("h += 2", "h = h + 2"), again=again, after=""
    )
    came = outcome(source, plain.replace("h *= 2", "h = h * 2"))
    assert came == ("right" if "h" not in body[:1] else "refused" if again == "True" else anew)
    found = check_file("/nowhere/main.py", source.encode()).findings
    if came == "right":
        assert found == []
    else:
        assert {(f.place.line, f.severity) for f in found} == {(7, "error")}
        assert all(f.message.endswith("silently wrong") == (came == "wrong") for f in found)


CLOSED_OVER = """\
import torch
from torch.utils.checkpoint import checkpoint
x = torch.ones(2, requires_grad=True)
scale = torch.tensor(2.0)
y = checkpoint(lambda t: (t * x * scale) ** 2, torch.ones(2), use_reentrant=False)
{line}
y.sum().backward()
"""


@pytest.mark.parametrize(
    ("line", "severity"),
    [("scale *= 3", "error"), ("scale = scale * 3", "warning"), ("scale = scale.clone(); scale *= 3", "warning")],
)  # fmt: skip
def test_inputs_that_need_no_gradient_beside_a_weight_that_does(line: str, severity: str) -> None:
    source = CLOSED_OVER.format(line=line)
    assert outcome(source, CLOSED_OVER.format(line="")) == "wrong"
    found = check_file("/nowhere/main.py", source.encode()).findings
    assert [(f.place.line, f.rule, f.severity, f.fix) for f in found] == [(6, "GM208", severity, None)]
    assert "as an argument" in found[0].help


def test_an_input_that_needs_no_gradient_is_kept_too() -> None:
    source = (
        CLOSED_OVER.format(line="t *= 3")
        .replace("torch.ones(2),", "t,")
        .replace("scale =", "t = torch.ones(2); scale =")
    )
    assert outcome(source, source.replace("t *= 3", "")) == "refused"
    found = check_file("/nowhere/main.py", source.encode()).findings
    assert [(f.place.line, f.rule, f.severity) for f in found] == [(6, "GM208", "error")]


def test_a_checkpoint_of_what_needs_no_gradient_at_all() -> None:
    source = CLOSED_OVER.format(line="scale *= 3").replace(" * x", "").replace("y.sum()", "(y * x).sum()")
    assert outcome(source, source.replace("scale *= 3", "")) == "right"
    assert check_file("/nowhere/main.py", source.encode()).findings == []
