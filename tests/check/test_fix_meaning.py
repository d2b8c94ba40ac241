"""--fix keeps what a program computes, however `y` came to its tensor: the program is run before and after."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from gradmend.cli.main import main

PROGRAM = """\
import torch
import torch.nn.functional as F

w = torch.tensor([0.3, -0.2, 1.0], requires_grad=True)
x = w.exp()
kept = []
named = {{"x": x}}


class Holder:
    t = x
    def __init__(self): self.cache = None
    def get(self, t):
        self.cache = t.tanh()
        return self.cache
    def same(self, t): return t
    @property
    def value(self): return self.t


def ident(t): return t
def noted(t):
    kept.append(t.sigmoid())
    return kept[-1]
def two(t):
    r = t.exp()
    return r, r
def gen(t): yield t


o = Holder()
seq = [x]
buf = torch.zeros(3)
{line}
y{write}
said = [t.detach().sum().item() for t in (x, y, o.t, buf, *seq, *kept, *named.values())]
said.append(o.cache.sum().item() if o.cache is not None else 0)
print(["%.4f" % s for s in said])
if torch.is_grad_enabled() and {backward}:
    (y.sum() + x.sum()).backward()
"""
LINES = """
y = x.exp()
y = x.sigmoid()
y = F.relu(x, inplace=True)
y = F.relu_(x)
y = x.exp_()
y = torch.sigmoid_(x)
y = ident(x)
y = ident(x.exp())
y = noted(x)
y = o.get(x)
y = o.same(x)
y = o.value
y = Holder.t
y = named["x"]
y = named.get("x")
y = named.setdefault("x", x)
y = named.setdefault("n", x.tanh())
y = seq[-1]
y = seq[0].exp()
y = next(gen(x))
y = next(iter(seq))
y = (lambda t: t)(x)
y = x.to(torch.float32)
y = x.float()
y = x.contiguous()
y = x.requires_grad_()
y = x.detach()
y = torch.nn.Identity()(x)
y = torch.nn.ReLU(inplace=True)(x)
y = torch.nn.Sequential(torch.nn.Sigmoid(), torch.nn.ReLU(inplace=True))(x)
y = torch.exp(x.detach(), out=buf)
y = two(x)[0]
y, z = two(x)
y = getattr(o, "t")
y = max(seq, key=len)
y = x if len(seq) else x.exp()
y = (kept.append(x.exp()) or kept[-1])
y = F.dropout(x.exp(), 0.5, training=False)
y = x.reshape(3)
y = x.view(3).exp()
y = sum([x.exp()])
y = torch.stack(seq).exp()[0]
y = o.cache = x.exp()
y = z = x.exp()
""".strip().splitlines()


def shown(source: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, "program", "exec"), {"__name__": "__main__"})
    return out.getvalue()


@pytest.mark.parametrize("write", [" += 1", ".mul_(2)", "[0] = 5.0"])
@pytest.mark.parametrize("line", LINES)
def test_the_same_values_before_and_after(line: str, write: str, tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(PROGRAM.format(line=line, write=write, backward=True))
    main(["check", "--isolated", "--no-cache", "-q", "--fix", str(file)])
    fixed = file.read_text().replace("torch.is_grad_enabled() and True", "False")
    assert shown(fixed) == shown(PROGRAM.format(line=line, write=write, backward=False))


def test_some_of_them_are_fixed(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text(PROGRAM.format(line=LINES[0], write=" += 1", backward=True))
    assert main(["check", "--isolated", "--no-cache", "-q", "--fix", str(file)]) == 0
    assert "y = y.clone()\ny += 1" in file.read_text()


# Names that hold something else than a tensor of torch's at times: a clone would stop the program, or change `said`.
OTHERS = {
    "a library": """\
import numpy, torch
def act(xp, a):
    y = xp.exp(a)
    y += 1
    return y
said = act(numpy, numpy.ones(2)).sum(), act(torch, w).sum().item()
act(torch, w).sum().backward()
""",
    "an array": """\
import numpy, torch
def act(a):
    y = a.cumprod(0)
    y += 1
    return y
said = act(numpy.ones(2)).sum(), act(w).sum().item()
act(w).sum().backward()
""",
    "a number": """\
import math, torch
def act(lib, a):
    y = lib.exp(a)
    y += 1
    return y
said = act(math, 1.0), act(torch, w).sum().item()
act(torch, w).sum().backward()
""",
    "numbers": """\
import torch
def act(a, b):
    y = a ** b
    y += 1
    return y
said = act(2.0, 3.0), act(w, w).sum().item()
act(w, w).sum().backward()
""",
    "a class of the program's own": """\
import torch
class Money:
    def exp(self): return Money()
    def __iadd__(self, other): return "money"
def act(a):
    y = a.exp()
    y += 1
    return y
said = act(Money()), act(w).sum().item()
act(w).sum().backward()
""",
    "a method that remembers": """\
import functools, torch
class Net:
    @functools.lru_cache
    def exp(self, t): return t.exp()
net = Net()
y = net.exp(w)
y += 1
said = [net.exp(w).sum().item()]
y.sum().backward()
""",
    "the module": """\
import __main__, torch
y = w.exp()
z = __main__.y
y += 1
said = [z.sum().item()]
y.sum().backward()
""",
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_may_be_no_tensor_is_left_as_it_is(name: str, tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    file.write_text("import torch\nw = torch.tensor([0.3, -0.2], requires_grad=True)\n" + OTHERS[name])
    before = file.read_text()
    main(["check", "--isolated", "--no-cache", "-q", "--fix", str(file)])
    assert file.read_text() == before


@pytest.mark.parametrize("name", OTHERS)
def test_and_is_shown(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.py"
    file.write_text("import torch\nw = torch.tensor([0.3, -0.2], requires_grad=True)\n" + OTHERS[name])
    main(["check", "--isolated", "--no-cache", "-q", "--diff", str(file)])
    assert "y.clone()" in capsys.readouterr().out or name == "numbers"
