"""Each refusal is really raised by the installed torch; its story names the line and what to change."""

from __future__ import annotations

from pathlib import Path

import pytest
from broken_programs import fail

from gradmend.story.failures import diagnose

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
w = torch.ones(4, requires_grad=True)
x = torch.ones(4, 3, requires_grad=True) * 1
class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return t.view_as(t)
    @staticmethod
    def backward(ctx, g):
        return g
class Pieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return t[:1], t[1:]
    @staticmethod
    def backward(ctx, a, b):
        return torch.cat([a, b])
class Lost(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.mark_dirty(t)
        t.add_(1)
        return t * 2
    @staticmethod
    def backward(ctx, g):
        return g
class TwoOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        ctx.mark_dirty(t)
        t.add_(1)
        return t, t * 2
    @staticmethod
    def backward(ctx, g, h):
        return g
"""

# (program, rule, op, words of the message, words of the help)
FUNC = "from torch.func import grad, vmap\n"
ROWS = [
    (
        FUNC + "held = torch.zeros(3)\ndef f(t):\n    held.add_(t)  # <- here\n    return held.sum()\ngrad(f)(torch.ones(3))",
        "GM136",
        "add_",
        "`held` comes from outside the function",
        "`held = held.add(t)`",
    ),
    (
        FUNC
        + "def f(t):\n    made = torch.zeros(3)\n    made[0] = t  # <- here\n    return made\nvmap(f)(torch.ones(4))",
        "GM136",
        "__setitem__",
        "`made` has no batch",
        "from a batched input",
    ),
    (
        FUNC + "norm = nn.BatchNorm1d(3)\nvmap(lambda t: norm(t))(torch.randn(4, 5, 3))  # <- here",
        "GM136",
        "norm",
        "BatchNorm updates its running statistics",
        "replace_all_batch_norm_modules_",
    ),
    ("w += 1  # <- here", "GM121", "add_", "`w` is a leaf", "`w = w + 1`"),
    ("w.grad = w.detach()\nw -= 0.1 * w.grad  # <- here", "GM121", "sub_", "`w` is a leaf", "put the update under"),
    ("w[0] = 5.0  # <- here", "GM121", "__setitem__", "`w[0]` is a view of a leaf", "`.clone()` of the leaf"),
    ("w.zero_()  # <- here", "GM121", "zero_", "`w` is a leaf", "`.clone()` of the leaf"),
    ("F.relu(w, inplace=True)  # <- here", "GM121", "relu", "`w` is a leaf", "no_grad"),
    ("torch._foreach_add_([w], 1.0)  # <- here", "GM121", "_foreach_add_", "a leaf", "no_grad"),
    ("w.unsqueeze_(0)  # <- here", "GM121", "unsqueeze_", "`w` is a leaf", "no_grad"),
    ("a, b = x.chunk(2)\na *= 2  # <- here", "GM122", "mul_", "`a` is one of the views that `split` or `chunk`", "`a = a * 2`"),
    ("a, b = x.split([1, 3])\nb.relu_()  # <- here", "GM122", "relu_", "`split`", "`b = b.relu()`"),
    ("a = x.unbind()[0]\na[0] = 1.0  # <- here", "GM122", "__setitem__", "a view of one that `split`, `chunk` or `unbind`", "out of place"),
    ("for row in x:\n    row.mul_(2)  # <- here", "GM122", "mul_", "iterating over `x` gave", "`for i in range(len(x)):`"),
    ("b = torch.zeros(4, 3)\nfor row in b:\n    row.add_(x[0])  # <- here", "GM122", "add_", "iterating over `b` gave", "`for i in range(len(b)):`"),
    ("b = torch.zeros(4, 3)\nr, s, *_ = b\nr.add_(x[0])  # <- here", "GM122", "add_", "`r` is one of several views that one call returned", "`r = r.add(x[0])`"),
    ("b = torch.zeros(4, 3)\nr, s = b[0], b[1]\nr += x[0]\ns += x[0]  # <- here", "GM121", "add_", "`s` is a view, made before the tensor that it is cut from required grad", "where it is written"),
    ("p, q = Pieces.apply(x)\np += 1  # <- here", "GM122", "add_", "`Pieces`", "`p = p + 1`"),
    ("with torch.no_grad():\n    v = x[1:]\nv.mul_(2)  # <- here", "GM123", "mul_", "made under `no_grad`", "outside the `no_grad` block"),
    ("with torch.inference_mode():\n    v = x[1:]\nv *= 2  # <- here", "GM123", "mul_", "`inference_mode`", "into the `inference_mode` block"),
    ("e = torch.ones(1, 3).expand(4, 3)\ne.add_(1)  # <- here", "GM124", "add_", "`e` is expanded", "`.clone()`"),
    ("e = torch.ones(1, 3).expand(4, 3)\ne[:, 0] = torch.arange(4.0)  # <- here", "GM124", "__setitem__", "`e[:, 0]` is expanded", "`.repeat(...)`"),
    ("buf = torch.empty(4)\ntorch.mul(w, 2, out=buf)  # <- here", "GM125", "mul", "`mul` with `out=`", "`buf = torch.mul(w, 2)`"),
    ("buf = torch.empty(4)\ny = torch.exp(w, out=buf)  # <- here", "GM125", "exp", "`exp` with `out=`", "`torch.exp(w)`"),
    ("buf = torch.empty(4, 4)\ntorch.matmul(x, x.t(), out=buf)  # <- here", "GM125", "matmul", "`matmul`", "drop `out=`"),
    ("v = x[1:]\nv.detach_()  # <- here", "GM126", "detach_", "`v` is a view", "`v = v.detach()`"),
    ("v = Same.apply(x)\nv += 1  # <- here", "GM127", "add_", "custom Function `Same`", "`Same.forward`"),
    ("m = nn.Linear(3, 3)\nm.register_full_backward_hook(lambda *a: None)\ny = m(x)\ny += 1  # <- here", "GM127", "add_", "`y` passed through a module with a backward hook", "`y = y + 1`"),
    ("m = nn.ReLU(inplace=True)\nm.register_full_backward_hook(lambda *a: None)\ny = m(x)  # <- here", "GM127", "m", "backward hook", "`inplace=False`"),
    ("with torch.inference_mode():\n    t = torch.ones(4)\ny = t * w  # <- here", "GM128", "mul", "used where backward would need it", "`.clone()`"),
    ("with torch.inference_mode():\n    t = torch.ones(4)\nt += 1  # <- here", "GM128", "add_", "`t` was made under `inference_mode`", "no_grad"),
    ("with torch.inference_mode():\n    t = torch.ones(4)\nt.requires_grad_()  # <- here", "GM128", "requires_grad_", "made to require grad", "no_grad"),
    ("t = torch.ones(4)\nt[1:] = t[:-1]  # <- here", "GM129", "__setitem__", "`t[1:]`", ".clone()"),
    ("t = torch.ones(4)\nt[1:].add_(t[:-1])  # <- here", "GM129", "add_", "overlapping", ".clone()"),
    ("Lost.apply(x)  # <- here", "GM120", "apply", "did not return it", "`ctx.mark_dirty`"),
    ("TwoOut.apply(x[1:])  # <- here", "GM120", "apply", "returns more than one tensor", "split the Function"),
    ("x.resize_(2)  # <- here", "GM130", "resize_", "would resize", "new tensor"),
    ("w.data = torch.ones(4, dtype=torch.int64)  # <- here", "GM130", "data =", "`w` requires grad", "floating point"),
    ("w.data = torch.ones(4).to_sparse()  # <- here", "GM130", "data =", "turn `w` into another kind", "new tensor"),
    ("x.requires_grad_(False)  # <- here", "GM130", "requires_grad_", "`requires_grad`", "detach()"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "rule", "op", "words", "change"), ROWS, ids=[r[0] for r in ROWS])
def test_the_line_the_cause_and_the_change(
    tmp_path: Path, program: str, rule: str, op: str, words: str, change: str
) -> None:
    exc, file, line = fail(tmp_path, HEAD + program)
    conflict = diagnose(exc)
    assert conflict is not None, exc
    assert (conflict.rule, conflict.kind) == (rule, "error")
    assert [(c.file, c.line, c.op) for c in conflict.culprits] == [(file, line, op)]
    assert words in conflict.message
    assert any(change in h for h in conflict.help), conflict.help


def test_every_row_offers_something_that_then_runs(tmp_path: Path) -> None:
    """The out-of-place forms that the stories spell out are Python, and PyTorch takes them."""
    ran = 0
    for number, (program, *_) in enumerate(ROWS):
        exc, file, line = fail(tmp_path, HEAD + program, f"program{number}.py")
        conflict = diagnose(exc)
        assert conflict is not None
        for text in conflict.help:
            new = text.partition(": `")[2].partition("`")[0]
            if " = " not in new or not text.startswith(
                ("write out of place", "or write", "drop", "if this is part")
            ):
                continue
            lines = Path(file).read_text().splitlines()
            lines[line - 1] = new
            exec("\n".join(lines), {"__name__": "__main__"})
            ran += 1
    assert ran >= 6


def test_an_error_of_another_kind_has_no_story(tmp_path: Path) -> None:
    exc, _, _ = fail(tmp_path, "import torch\ntorch.ones(2) @ torch.ones(3)\n")
    assert diagnose(exc) is None
    assert (
        diagnose(KeyError("a leaf Variable that requires grad is being used in an in-place operation"))
        is None
    )


def test_wordings_of_older_releases_are_known() -> None:
    for text, rule in [
        ("leaf variable has been moved into the graph interior", "GM121"),
        ("Output 0 of UnbindBackward is a view and is being modified inplace. This view is the output of a function that returns multiple views. Such", "GM122"),
        ("Output 0 of BackwardHookFunctionBackward is a view and is being modified inplace. This view was created inside a custom Function (or", "GM127"),
    ]:  # fmt: skip
        conflict = diagnose(RuntimeError(text))
        assert conflict is not None and conflict.rule == rule


def test_the_line_in_a_library_and_the_users_line_are_both_told(tmp_path: Path) -> None:
    lib = tmp_path / "site-packages" / "helper_lib.py"
    lib.parent.mkdir()
    lib.write_text("def bump(t):\n    t += 1\n")
    program = f"""
    import sys; sys.path.insert(0, {str(lib.parent)!r})
    import torch, helper_lib
    w = torch.ones(3, requires_grad=True)
    helper_lib.bump(w)  # <- here
    """
    exc, file, line = fail(tmp_path, program)
    conflict = diagnose(exc)
    assert conflict is not None and conflict.rule == "GM121"
    assert [(c.file, c.line) for c in conflict.culprits] == [(file, line)]
    assert any("helper_lib.py:2, in bump" in n for n in conflict.notes)
