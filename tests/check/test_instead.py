"""The help of a finding is the line to type: it is put into the program, and the installed torch runs it."""

from __future__ import annotations

import ast

import pytest
import torch

from gradmend import rules
from gradmend.check import table
from gradmend.check.files import check_file
from gradmend.check.instead import instead
from gradmend.check.rewrite import fixed

PROGRAM = """\
import torch
import torch.nn.functional as F

x = torch.linspace(0.1, 1, 6).reshape(2, 3).requires_grad_()
m = torch.tensor([[True, False, True], [False, False, True]])
box = torch.nn.Identity()
y = x.exp()
{line}
(y + x).sum().backward()
"""
LINES = [
    ("y += 1", "y = y + 1"),
    ("y *= x - 1", "y = y * (x - 1)"),
    ("y **= 2 if True else 3", "y = y ** (2 if True else 3)"),
    ("y.masked_fill_(m, 0)", "y = y.masked_fill(m, 0)"),
    ("y.clamp_(max=2)", "y = y.clamp(max=2)"),
    ("y.cumsum_(0)", "y = y.cumsum(0)"),
    ("torch.relu_(y)", "y = torch.relu(y)"),
    ("y.zero_()", "y = torch.zeros_like(y)"),
    ("y.fill_(3)", "y = torch.full_like(y, 3)"),
    ("box.s = x.exp(); box.s += 1; y = box.s", "box.s = box.s + 1"),
]


@pytest.mark.parametrize(("line", "typed"), LINES)
def test_the_line_to_type(line: str, typed: str) -> None:
    (found,) = check_file("/nowhere/h.py", PROGRAM.format(line=line).encode()).findings
    assert f"write `{typed}`" in found.help
    wrong = next(
        part for part in line.split("; ") if part.startswith(typed.partition(" = ")[0]) or "(" in part
    )
    with pytest.raises(RuntimeError, match="inplace"):
        exec(PROGRAM.format(line=line), {})
    mended = line.replace("box.s += 1", typed) if "box" in line else line.replace(wrong, typed)
    assert check_file("/nowhere/h.py", PROGRAM.format(line=mended).encode()).findings == []
    exec(PROGRAM.format(line=mended), {})


@pytest.mark.parametrize("line", ["y[0] = 5", "y[m] += 1", "y[0].mul_(2)", "y.copy_(x)"])
def test_where_no_line_will_do_it_is_a_clone_before(line: str) -> None:
    (found,) = check_file("/nowhere/h.py", PROGRAM.format(line=line).encode()).findings
    assert "clone it first: `y = y.clone()`" in found.help
    with pytest.raises(RuntimeError, match="inplace"):
        exec(PROGRAM.format(line=line), {})
    exec(PROGRAM.format(line=f"y = y.clone()\n{line}"), {})


def test_a_view_is_not_cloned_away_from_what_it_shows() -> None:
    """`v = v.clone()` would leave y as it was: another program."""
    (found,) = check_file("/nowhere/h.py", PROGRAM.format(line="v = y[0]\nv.mul_(2)").encode()).findings
    assert "clone()" not in found.help and "before the view" in found.help


def test_every_twin_is_a_method_of_tensors() -> None:
    """What is told to be written exists: asked of the installed torch, for each in-place method that it has."""
    names = [n for n in dir(torch.Tensor) if table.is_inplace(n) and n not in table.METADATA_WRITES]
    assert len(names) > 100
    for name in names:
        statement = ast.parse(f"y.{name}(a)").body[0]
        assert isinstance(statement, ast.Expr)
        line = instead(statement, statement.value).line
        if line and "_like" not in line:
            assert hasattr(torch.Tensor, line.removeprefix("y = y.").partition("(")[0]), name


def test_what_a_checkpoint_closes_over_gets_no_clone() -> None:
    """A clone or a new tensor under the old name is read by the second run, and the gradient is as wrong, in silence."""
    bad = rules.get("GM208").bad.strip("\n")
    (found,) = check_file("/nowhere/h.py", bad.encode()).findings
    assert (found.rule, found.fix) == ("GM208", None)
    assert "as an argument" in found.help and "clone" not in found.help
    for line in ("scale = scale.clone(); scale.fill_(5.0)", "scale = torch.full_like(scale, 5.0)"):
        names: dict[str, torch.Tensor] = {}
        exec(bad.replace("scale.fill_(5.0)", line), names)
        assert not torch.allclose(names["x"].grad, 8 * names["x"])  # type: ignore[arg-type]


def test_an_argument_of_a_checkpoint_may_be_cloned() -> None:
    source = """\
import torch
from torch.utils.checkpoint import checkpoint

x = torch.tensor([1.0, 2.0], requires_grad=True)
h = x * 2
y = checkpoint(lambda t: t ** 2, h, use_reentrant=False)
h += 1
y.sum().backward()
"""
    (found,) = check_file("/nowhere/h.py", source.encode()).findings
    assert (found.place.line, found.rule) == (7, "GM208")
    assert found.fix is not None and found.fix.edits[0].text == "h = h.clone()\n"
    names: dict[str, torch.Tensor] = {}
    exec(source.replace("h += 1", "h = h.clone()\nh += 1"), names)
    assert torch.equal(names["x"].grad, 8 * names["x"])  # type: ignore[arg-type]


READS = """\
import torch

w = torch.eye(3).mul(0.5).requires_grad_()
x = torch.linspace(0.1, 1, 12).reshape(4, 3)
h = torch.zeros(4, 3)
h[0] = x[0] @ w
for t in range(1, 4):
    {line}
h.sum().backward()
"""


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("h[t] = torch.tanh(h[t - 1] @ w + x[t])", "h[t] = torch.tanh(h[t - 1].clone() @ w + x[t])"),
        ("h[t] += h[t - 1] ** 2 + h.shape[0]", "h[t] += h[t - 1].clone() ** 2 + h.shape[0]"),
        (
            "h[t].add_(h[t - 1] * h[t - 1].exp() * w[0])",
            "h[t].add_(h[t - 1].clone() * h[t - 1].clone().exp() * w[0])",
        ),
    ],
)
def test_a_line_that_reads_what_it_writes_clones_what_it_reads(line: str, typed: str) -> None:
    """A clone before such a line moves both to new memory, and PyTorch refuses as before."""
    source = READS.format(line=line)
    (found,) = check_file("/nowhere/h.py", source.encode()).findings
    assert found.place.line == 8 and "h[t - 1].clone()" in found.help and "h = h.clone()" not in found.help
    mended, count = fixed(source, [found], unsafe=True)
    assert (mended, count) == (READS.format(line=typed), 1)
    for text in (source, READS.format(line=f"h = h.clone(); {line}")):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            exec(text, {})
    exec(mended, {})
    assert check_file("/nowhere/h.py", mended.encode()).findings == []


def helps(source: str) -> str:
    (found,) = check_file("/nowhere/h.py", source.encode()).findings
    return found.help


def test_a_chain_of_writes_is_written_as_one_line() -> None:
    """`self.scale.mul(0.9)` alone would throw the result away, and the rest of the chain too."""
    source = PROGRAM.format(line="y.mul_(0.9).add_(0.1)")
    assert "write `y = y.mul(0.9).add(0.1)`, or clone it first" in helps(source)
    names: dict[str, torch.Tensor] = {}
    exec(source.replace("y.mul_(0.9).add_(0.1)", "y = y.mul(0.9).add(0.1)"), names)
    assert torch.allclose(names["y"], names["x"].exp() * 0.9 + 0.1)


def test_a_result_used_at_once_and_a_tensor_used_later_need_a_clone() -> None:
    """With `z = y.add(1)` the last line would see the old y."""
    help = helps(PROGRAM.format(line="z = y.add_(1)"))
    assert "clone it first: `y = y.clone()`" in help and "y.add(1)" not in help
    assert "write `y.add(1)`" in helps(PROGRAM.format(line="y = y.add_(1)"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("t.add_(1)", "`t` is the caller's: `return t.add(1)`"),
        ("t += 1", "`t` is the caller's: `return t + 1`"),
        ("t[0] = 1", "`t` is the caller's: change a copy, return it"),
        ("return t.add_(1)", "write `t.add(1)`, and use what is returned"),
        ("t += 1\n    return t", "write `t = t + 1`"),
    ],
)
def test_what_is_written_for_the_caller_is_handed_back(body: str, said: str) -> None:
    source = PROGRAM.format(line="bump(y)").replace("box =", f"def bump(t):\n    {body}\nbox =")
    (found,) = check_file("/nowhere/h.py", source.encode()).findings
    assert found.help.startswith(said)
    assert "t.clone()" not in found.help or "return t" in body
    if "is the caller's" in said:
        assert found.fix is None


def test_a_forward_hook_returns_the_new_output() -> None:
    source = """\
import torch

def hook(module, given, out):
    out.mul_(2)

net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sigmoid())
net[1].register_forward_hook(hook)
net(torch.ones(2, 3)).sum().backward()
"""
    assert "`return out.mul(2)`" in helps(source)
    with pytest.raises(RuntimeError, match="inplace"):
        exec(source, {})
    exec(source.replace("out.mul_(2)", "return out.mul(2)"), {})


STATE = """\
import torch

cell = torch.nn.GRUCell(2, 2)
optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
h = torch.zeros(1, 2)
for _ in range(3):
    {line}
    optimizer.zero_grad()
    h.sum().backward({retain})
    optimizer.step()
"""


def test_a_state_carried_over_a_step_is_detached() -> None:
    source = STATE.format(line="h = cell(torch.ones(1, 2), h)", retain="retain_graph=True")
    (found,) = check_file("/nowhere/h.py", source.encode()).findings
    assert (found.place.line, found.rule) == (10, "GM104")
    assert "in the next iteration" in found.message and "`h = h.detach()`" in found.help
    with pytest.raises(RuntimeError, match="inplace"):
        exec(source, {})
    exec(STATE.format(line="h = cell(torch.ones(1, 2), h.detach())", retain=""), {})


def test_two_losses_and_a_step_between_are_not_one_iteration_and_the_next() -> None:
    (found,) = check_file("/nowhere/h.py", rules.get("GM104").bad.strip("\n").encode()).findings
    assert "next iteration" not in found.message
    assert "anew after step()" in found.help and "mix their gradients" in found.help


def test_inplace_true_is_dropped_where_the_module_is_made() -> None:
    source = """\
import torch

net = torch.nn.Sequential(
    torch.nn.Linear(3, 3),
    torch.nn.Sigmoid(),
    torch.nn.Dropout(0.5, inplace=True),
)
x = torch.ones(2, 3)
net(x).sum().backward()
"""
    (found,) = check_file("/nowhere/h.py", source.encode()).findings
    assert (found.place.line, found.rule) == (9, "GM107")
    assert "made on line 6" in found.message and "`x`" not in found.message
    assert found.help == "drop inplace=True on line 6" and 6 in [p.line for _, p in found.related]
    with pytest.raises(RuntimeError, match="inplace"):
        exec(source, {})
    mended, _ = fixed(source, [found], unsafe=True)
    exec(mended, {})
    assert check_file("/nowhere/h.py", mended.encode()).findings == []


HELD = """\
import torch

x = torch.linspace(0.1, 1, 3).requires_grad_()
i = 1
hs = [torch.relu(x), torch.relu(x * 2)]
d = {{"a": x.exp(), "b": [x.exp()]}}
{line}
(sum(hs) + d["a"] + d["b"][0]).sum().backward()
"""


@pytest.mark.parametrize(
    ("line", "typed", "clone"),
    [
        ("hs[i - 1] += hs[i]", "hs[i - 1] = hs[i - 1] + hs[i]", "hs[i - 1]"),
        ("d['a'] *= 2", "d['a'] = d['a'] * 2", "d['a']"),
        ("d['b'][0] += 1", "d['b'][0] = d['b'][0] + 1", "d['b'][0]"),
        ("hs[0].mul_(2)", "hs[0] = hs[0].mul(2)", "hs[0]"),
        ("hs[-1][0] = 0.0", "", "hs[-1]"),
        ("d['b'][0][1:] += 1", "", "d['b'][0]"),
    ],
)
def test_an_item_of_a_list_is_bound_anew_and_not_the_list(line: str, typed: str, clone: str) -> None:
    source = HELD.format(line=line)
    with pytest.raises(RuntimeError, match="inplace"):
        exec(source, {})
    (found,) = check_file("/nowhere/h.py", source.encode()).findings
    assert found.place.line == 7 and f"`{clone} = {clone}.clone()`" in found.help
    assert f"write `{typed}`" in found.help or not typed
    rewritten, count = fixed(source, [found], unsafe=True)
    assert count == 1 and f"{clone} = {clone}.clone()" in rewritten
    for mended in filter(None, (rewritten, HELD.format(line=typed) if typed else "")):
        space: dict = {}
        exec(mended, space)
        want = gradient_of(line)
        assert torch.allclose(space["x"].grad, want)
        assert check_file("/nowhere/h.py", mended.encode()).findings == []


def gradient_of(line: str) -> torch.Tensor:
    """With every kept result cloned at once: nothing that backward needs is written to."""
    source = HELD.format(line=line)
    for made in ("torch.relu(x)", "torch.relu(x * 2)", "x.exp()"):
        source = source.replace(made, f"{made}.clone()")
    space: dict = {}
    exec(source, space)
    return space["x"].grad


ELSEWHERE = """\
import torch

x = torch.linspace(0.1, 1, 3).requires_grad_()
outs = []
y = {made}
outs.append(y)
z = {read}
y *= 2
(sum(outs) + z).sum().backward()
"""


def test_what_a_list_holds_too_is_said_to_keep_the_old_value() -> None:
    result = ELSEWHERE.format(made="x.exp()", read="0")
    help = helps(result)
    assert help.startswith("write `y = y * 2`") and "whatever else holds `y` has the old value" in help
    assert help.endswith("leave this line and clone what exp returns on line 5")
    given = ELSEWHERE.format(made="x * 3", read="y.sin()")
    assert helps(given).endswith("leave this line and give sin on line 7 a clone")
    for broken, mended, changed in (
        (result, ELSEWHERE.format(made="x.exp().clone()", read="0"), 2 * torch.linspace(0.1, 1, 3).exp()),
        (given, given.replace("y.sin()", "y.clone().sin()"), 6 + 3 * (3 * torch.linspace(0.1, 1, 3)).cos()),
    ):
        with pytest.raises(RuntimeError, match="inplace"):
            exec(broken, {})
        space: dict = {}
        exec(mended, space)
        assert torch.allclose(space["x"].grad, changed)
        assert check_file("/nowhere/h.py", mended.encode()).findings == []
    alone = result.replace("outs.append(y)", "pass").replace("sum(outs)", "y")
    assert "whatever else" not in helps(alone)


LEAF = """\
import torch

a = torch.zeros(2, 3, requires_grad=True)
b = torch.ones(2, 3, requires_grad=True)
t = a[0]
{line}
(t * 2).sum().backward()
"""


def test_no_grad_is_not_put_around_what_has_a_gradient() -> None:
    source = LEAF.format(line="t += b[0]")
    (found,) = check_file("/nowhere/h.py", source.encode()).findings
    assert found.rule == "GM121" and "no_grad would cut the gradient" in found.help
    mended, count = fixed(source, [found], unsafe=True)
    assert count == 1 and "t = t.clone()\nt += b[0]" in mended
    space: dict = {}
    exec(mended, space)
    assert space["a"].grad[0].tolist() == space["b"].grad[0].tolist() == [2.0, 2.0, 2.0]
    (plain,) = check_file("/nowhere/h.py", LEAF.format(line="t += 1").encode()).findings
    assert plain.fix is not None and "no_grad" in plain.fix.edits[0].text and "no_grad():`" in plain.help


@pytest.mark.parametrize(
    ("line", "write", "called"),
    [
        ("l = F.mse_loss(x * 1, t)", "t += 1", "target"),
        ("l = (x * 2).masked_fill(m, 0).sum()", "m[0] = True", "mask"),
        ("l = (x * 2).index_select(0, i).sum()", "i += 1", "index"),
    ],
)
def test_what_says_where_is_called_by_what_it_is(line: str, write: str, called: str) -> None:
    source = f"""\
import torch
import torch.nn.functional as F
x = torch.ones(3, requires_grad=True)
t, m, i = torch.rand(3), torch.tensor([False, True, False]), torch.tensor([0, 1])
{line}
{write}
l.backward()
"""
    with pytest.raises(RuntimeError, match="inplace"):
        exec(source, {})
    (found,) = check_file("/nowhere/h.py", source.encode()).findings
    assert (found.place.line, found.rule) == (6, "GM106")
    assert found.help == f"clone the {called} before it is changed"
