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
