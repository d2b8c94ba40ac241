"""A clone is inserted by --fix only where the name is the one way to its tensor."""

from __future__ import annotations

import pytest

from gradmend.check.alone import is_alone

HEAD = "import torch\nw = torch.ones(4, requires_grad=True)\n"
ALONE = {
    "bound and written": "y = w.exp()\ny += 1\ny.sum().backward()\n",
    "in a function": "def f(w):\n    y = torch.exp(w)\n    y += 1\n    return y\n",
    "a method of a local": "def f(w):\n    v = torch.exp(w) * 2\n    y = v.exp()\n    y += 1\n    return y\n",
    "a name bound by way of itself": "w = w * 2\nw += 1\ny = w.exp()\ny += 1\n",
    "by another name of torch": "import torch.nn.functional as F\ndef f(w):\n    y = F.softmax(w, 0)\n    y += 1\n",
    "a function of torch": "from torch import exp\ndef f(w):\n    y = exp(w)\n    y += 1\n",
    "arithmetic": "y = w ** 2\ny += 1\n",
    "an attribute of the same name": "class Holder:\n    def f(self, w):\n        y = torch.exp(w)\n        y += 1 * self.y\n",
    "between, another name": "y = w.exp()\nz = w + 1\ny += 1\n",
}
NOT = {
    "a parameter": "def f(y):\n    y += 1\n",
    "a view": "y = w.exp()\nv = y.view(2, 2)\ny += 1\n",
    "a default": "y = w.exp()\nf = lambda t=y: t.sum()\ny += 1\n",
    "in a dict": "y = w.exp()\nkeep = {'y': y}\ny += 1\n",
    "a global of a function": "y = torch.ones(2)\ndef f(x):\n    return x * y\ny += 1\n",
    "a closure": "def f(w):\n    y = w.exp()\n    g = lambda: y.sum()\n    y += 1\n    return g\n",
    "another block": "y = w.exp()\nfor _ in range(2):\n    y += 1\n",
    "an alias": "y = x = w.exp()\ny += 1\n",
    "of itself": "y = w\ny = y.exp()\ny += 1\n",
    "of a function that remembers": "from functools import cache\n@cache\ndef e():\n    return w.exp()\ny = e()\ny += 1\n",
    "of a method of an object": "y = holder.value()\ny += 1\n",
    "global": "def f(w):\n    global y\n    y = w.exp()\n    y += 1\n",
    "of a parameter": "def f(w):\n    y = w.exp()\n    y += 1\n    return y\n",
    "of a library that was given": "def f(xp, a):\n    y = xp.exp(a)\n    y += 1\n    return y\n",
    "of what stands in for torch": "try:\n    import torch\nexcept ImportError:\n    torch = None\ny = torch.exp(w)\ny += 1\n",
    "of a torch that is another": "import numpy as torch\ny = torch.exp(w)\ny += 1\n",
    "of a patched op": "torch.exp = print\ny = torch.exp(w)\ny += 1\n",
    "arithmetic of parameters": "def f(a, b):\n    y = a ** b\n    y += 1\n",
    "arithmetic with anything": "def f(b):\n    y = torch.ones(2) * b\n    y += 1\n",
    "plus": "y = +w\ny += 1\n",
    "of a name bound twice": "y = w.exp()\ny += 1\nw = other\n",
    "of a loop's name": "for w in things:\n    y = w.exp()\n    y += 1\n",
    "with out=": "y = torch.exp(w, out=v)\ny += 1\n",
    "names from anywhere": "from things import *\ny = torch.exp(w)\ny += 1\n",
    "an attribute of the module": "import __main__\ny = w.exp()\nz = __main__.y\ny += 1\n",
    "an attribute by its name": "y = w.exp()\nz = getattr(me, 'y')\ny += 1\n",
    "a chain too long": "v0 = torch.ones(2)\n"
    + "".join(f"v{i + 1} = v{i} + 1\n" for i in range(5000))
    + "y = v5000.exp()\ny += 1\n",
    "no Python": "y = (\ny += 1\n",
}


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if "y += 1" in line)


@pytest.mark.parametrize("how", ALONE)
def test_alone(how: str) -> None:
    text = HEAD + ALONE[how]
    assert is_alone(text, "y", line_of(text))


@pytest.mark.parametrize("how", NOT)
def test_not_alone(how: str) -> None:
    text = HEAD + NOT[how]
    assert not is_alone(text, "y", line_of(text))
