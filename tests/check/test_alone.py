"""A clone is inserted by --fix only where the name is the one way to its tensor."""

from __future__ import annotations

import pytest

from gradmend.check.alone import is_alone

HEAD = "import torch\nw = torch.ones(4, requires_grad=True)\n"
ALONE = {
    "bound and written": "y = w.exp()\ny += 1\ny.sum().backward()\n",
    "in a function": "def f(w):\n    y = w.exp()\n    y += 1\n    return y\n",
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
