"""Arms that exclude each other, modes that a program sets by hand, calls that never return: no error where no run fails.

PyTorch runs each program as well, so that no label is only believed.
"""

from __future__ import annotations

import sys

import pytest

import gradmend
from gradmend.check.files import check_file

HEAD = "import sys\nimport torch\nimport torch.nn as nn\nx = torch.ones(3, requires_grad=True)\n"
DROPOUT = "m = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.Dropout({p}, inplace=True))\n"

# Nothing is told of these.
QUIET = {
    "no activation after the last layer": """
layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
y = x
for i, layer in enumerate(layers):
    y = layer(y).sigmoid() if i < len(layers) - 1 else layer(y)
y += 1
y.sum().backward()
""",
    "the last round by its number": """
n, y = len(sys.argv) + 2, x
for i in range(n):
    y = y.exp() if i + 1 != n else y + 1
y += 1
y.sum().backward()
""",
    "the contrary of a comparison": """
n = len(sys.argv)
y = x.exp() if n > 300 else x + 1
if n <= 300:
    y += 1
y.sum().backward()
""",
    "sides of a comparison swapped": """
n = len(sys.argv)
y = x.exp() if n > 300 else x + 1
if not 300 < n:
    y += 1
y.sum().backward()
""",
    "not both is one or the other": """
a, b = len(sys.argv) > 300, len(sys.argv) > 400
if a and b:
    y = x.exp()
else:
    y = x + 1
if not a or not b:
    y += 1
y.sum().backward()
""",
    "one word or another": """
m = sys.argv[300] if len(sys.argv) > 300 else "lin"
y = x.exp() if m == "exp" else x + 1
if m == "lin":
    y += 1
y.sum().backward()
""",
    "a flag set in the arms": """
if len(sys.argv) > 300:
    y = x.exp()
    safe = False
else:
    y = x + 1
    safe = True
if safe:
    y += 1
y.sum().backward()
""",
    "None asked twice": """
opt = sys.argv[300] if len(sys.argv) > 300 else None
if opt is None:
    y = x + 1
else:
    y = x.exp()
if opt is None:
    y += 1
y.sum().backward()
""",
    "an arm that raises": """
if len(sys.argv) > 300:
    raise SystemExit
y = x.exp()
if len(sys.argv) > 300:
    y += 1
y.sum().backward()
""",
    "a call that never returns": """
def die(why):
    print(why)
    raise ValueError(why)
y = x.exp()
if len(sys.argv) > 300:
    y += 1
    die("no")
y.sum().backward()
""",
    "a call that raises, caught": """
def check(t):
    raise ValueError
y = x.exp()
try:
    check(y)
    y += 1
except ValueError:
    pass
y.sum().backward()
""",
    "the else of a loop that breaks": """
y = x.exp()
for i in range(3):
    if i == 1:
        break
else:
    y += 1
y.sum().backward()
""",
    "dropout in eval mode": DROPOUT.format(p=0.5) + "m.eval()\nm(torch.ones(2, 3)).sum().backward()\n",
    "dropout in train(False)": DROPOUT.format(p=0.5)
    + "m.train(False)\nm(torch.ones(2, 3)).sum().backward()\n",
    "dropout that drops nothing": DROPOUT.format(p=0.0) + "m(torch.ones(2, 3)).sum().backward()\n",
    "a model that nobody puts in eval mode": """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
    def forward(self, x):
        y = self.l(x).sigmoid()
        if not self.training:
            y += 1
        return y
M()(torch.ones(2, 3)).sum().backward()
""",
    "no_grad entered by hand": """
g = torch.no_grad()
g.__enter__()
x += 1
g.__exit__(None, None, None)
x.exp().sum().backward()
""",
    "no_grad entered by a class": """
class Off:
    def __enter__(self):
        self.c = torch.no_grad()
        self.c.__enter__()
    def __exit__(self, *a):
        self.c.__exit__(*a)
with Off():
    x += 1
x.exp().sum().backward()
""",
    "no_grad on a stack": """
import contextlib
with contextlib.ExitStack() as stack:
    stack.enter_context(torch.no_grad())
    x += 1
x.exp().sum().backward()
""",
    "no_grad by a decorator": """
import functools
def frozen(f):
    @functools.wraps(f)
    def inner(*args, **kwargs):
        with torch.no_grad():
            return f(*args, **kwargs)
    return inner
@frozen
def update(p):
    p += 1
update(x)
x.exp().sum().backward()
""",
    "a grad mode that a function sets": """
def off():
    torch.set_grad_enabled(False)
off()
x += 1
torch.set_grad_enabled(True)
x.exp().sum().backward()
""",
    "a loop of one round": """
l = x.exp().sum()
for _ in range(1):
    l.backward()
""",
    "a while of one round": """
l = x.exp().sum()
n = 0
while n < 1:
    l.backward()
    n += 1
""",
    "kept elsewhere": """
with torch.autograd.graph.save_on_cpu():
    y = x.exp()
y += 1
y.sum().backward()
""",
}
# Of these, something may be told, but no error.
DOUBTED = {
    "two tests side by side": """
y = x.exp() if sys.maxsize % 2 == 0 else x + 1
if sys.maxsize % 2 == 1:
    y += 1
y.sum().backward()
""",
    "every fourth round": """
l = x.exp().sum()
step = 0
for i in range(4):
    step += 1
    if step % 4 == 0:
        l.backward()
""",
    "the error is waited for": """
y = x.exp()
y += 1
try:
    y.sum().backward()
except RuntimeError:
    pass
""",
    "the error is let pass": """
import contextlib
y = x.exp()
y += 1
with contextlib.suppress(RuntimeError):
    y.sum().backward()
""",
}
# What is added to a value of two arms: the arms still exclude each other.
SUMS = {
    "what one arm appends": """
c = len(sys.argv) > 5
h = x.tanh()
outs = [x]
if c:
    h += 1
else:
    outs.append(h)
torch.stack(outs).sum().backward()
""",
    "a sum after a branch": """
c = len(sys.argv) > 5
h = x.tanh()
if c:
    h += 1
    out = x
else:
    out = h
(out + x).sum().backward()
""",
    "a loss with a term of a branch": """
c = len(sys.argv) > 5
h = x.tanh()
loss = x.sum()
if c:
    h += 1
    reg = x.sum()
else:
    reg = h.sum()
loss = loss + reg
loss.backward()
""",
    "a list of what a branch gave": """
c = len(sys.argv) > 5
h = x.tanh()
outs = []
if c:
    h += 1
    out = x
else:
    out = h
outs.append(out)
outs.append(x)
sum(outs).sum().backward()
""",
    "a sum after a match": """
c = len(sys.argv) > 5
h = x.tanh()
match c:
    case True:
        h += 1
        out = x
    case _:
        out = h
(out + x).sum().backward()
""",
    "a sum after a try": """
c = len(sys.argv) > 5
h = x.tanh()
try:
    int('a')
    h += 1
    out = x
except ValueError:
    out = h
(out + x).sum().backward()
""",
    "after a try": """
c = len(sys.argv) > 5
h = x.tanh()
try:
    int('a')
    h += 1
    out = x
except ValueError:
    out = h
out.sum().backward()
""",
    "the same test as a value": """
c = len(sys.argv) > 5
h = x.tanh()
if c:
    h += 1
out = x if c else h
(out + x).sum().backward()
""",
    "a sum with what a function returned early": """
c = len(sys.argv) > 5
h = x.tanh()
def f(c):
    h = x.tanh()
    if c:
        h += 1
        return x
    return h
(f(c) + x).sum().backward()
""",
    "a forward that adds its input": """
c = len(sys.argv) > 5
h = x.tanh()
class M(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.l = nn.Linear(3, 3)
    def forward(self, x):
        h = self.l(x).tanh()
        if self.c:
            h += 1
            out = x
        else:
            out = h
        return out + x
M(c)(torch.ones(2, 3)).sum().backward()
""",
}
QUIET.update(SUMS)
# And what stays an error.
BROKEN = {
    "the same arm": ("n = len(sys.argv)\ny = x + 1\nif n > 0:\n    y = x.exp()\nif n > 0:\n    y += 1\ny.sum().backward()\n", 10),
    "dropout in train mode": (DROPOUT.format(p=0.5) + "m.eval()\nm.train()\nm(torch.ones(2, 3)).sum().backward()\n", 8),
    "no_grad left by hand": ("g = torch.no_grad()\ng.__enter__()\ng.__exit__(None, None, None)\nx += 1\n", 8),
    "a loop of two rounds": ("l = x.exp().sum()\nfor _ in range(2):\n    l.backward()\n", 7),
    "a sum with the arm that wrote": ("y = x.exp()\nif len(sys.argv) > 5:\n    z = x\nelse:\n    y += 1\n    z = y\n(z + x).sum().backward()\n", 9),
    "a sum, written after the branch": ("y = x.exp()\nif len(sys.argv) > 5:\n    z = x\nelse:\n    z = y\ny += 1\n(z + x).sum().backward()\n", 10),
    "appended and written by one arm": ("y = x.exp()\nouts = []\nif len(sys.argv) < 5:\n    outs.append(y)\n    y += 1\ntorch.stack(outs).sum().backward()\n", 9),
    "appended by an arm, written after it": ("y = x.exp()\nouts = [x]\nif len(sys.argv) < 5:\n    outs.append(y)\ny += 1\ntorch.stack(outs).sum().backward()\n", 9),
    "a dict that fills": (
        "kept = {}\nfor _ in range(2):\n    if 'h' not in kept:\n        kept['h'] = x.tanh()\n    (kept['h'] * x).sum().backward()\n",
        9,
    ),
    "a second backward": ("y = x * x\ny.sum().backward()\ny.sum().backward()\n", 7),
    "a decorator that leaves the mode": (
        "def timed(f):\n    def g(*a):\n        with torch.enable_grad():\n            return f(*a)\n    return g\n"
        "@timed\ndef up(p):\n    p += 1\nup(x)\n",
        12,
    ),
}  # fmt: skip


def run(source: str) -> None:
    import torch

    torch.manual_seed(0)
    argv, sys.argv = sys.argv, ["main.py"]
    try:
        exec(compile(source, "main.py", "exec"), {"__name__": "__main__"})
    finally:
        sys.argv = argv
        torch.set_grad_enabled(True)


def told(source: str) -> list[tuple[int, str, str]]:
    return [
        (f.place.line, f.rule, f.severity) for f in check_file("/nowhere/main.py", source.encode()).findings
    ]


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_told(name: str) -> None:
    run(HEAD + QUIET[name])
    assert told(HEAD + QUIET[name]) == []


@pytest.mark.parametrize("name", DOUBTED)
def test_no_error(name: str) -> None:
    run(HEAD + DOUBTED[name])
    assert "error" not in [severity for _, _, severity in told(HEAD + DOUBTED[name])]


@pytest.mark.parametrize("name", BROKEN)
def test_still_an_error(name: str) -> None:
    source, line = BROKEN[name]
    with pytest.raises(RuntimeError):
        run(HEAD + source)
    assert [(n, severity) for n, _, severity in told(HEAD + source)] == [(line, "error")]


def test_a_default_of_a_class_that_nobody_makes_says_little() -> None:
    source = """
import torch.nn as nn
class Attention(nn.Module):
    def __init__(self, dim, drop=0.0):
        super().__init__()
        self.qk = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop, inplace=True)
    def forward(self, x):
        attn = self.qk(x).softmax(-1)
        attn = self.drop(attn)
        return attn @ x
"""
    assert told(source) == [(10, "GM107", "warning")]


@pytest.mark.parametrize(
    ("write", "rule"),
    [("y[0] = 1", "GM101"), ("for i in range(2):\n    y[i] = 1", "GM103")],
    ids=["alone", "in a loop"],
)
def test_a_lone_write_to_a_part_fills_no_buffer(write, rule):
    source = (
        f"import torch\nx = torch.ones(3, requires_grad=True)\ny = x.exp()\n{write}\ny.sum().backward()\n"
    )
    assert [f.rule for f in check_file("/nowhere/main.py", source.encode()).findings] == [rule]
    with pytest.raises(gradmend.ConflictError) as told, gradmend.watch():
        exec(compile(source, "main.py", "exec"), {})
    assert told.value.conflict.rule in (rule, "GM101")  # a loop shows in a file only


def test_a_helper_that_is_called_twice_is_no_iteration() -> None:
    program = """
a, b = nn.Linear(3, 3), nn.Linear(3, 1)
def update(opt, loss):
    opt.zero_grad()
    loss.backward()
    opt.step()
first, second = b(x).sum(), b(a(x).tanh()).sum()
update(torch.optim.SGD(b.parameters(), 0.1), first)
update(torch.optim.SGD(a.parameters(), 0.1), second)
"""
    (told,) = check_file("/nowhere/main.py", (HEAD + program).encode()).findings
    assert told.rule == "GM104"
    assert "iteration" not in told.message + told.help
