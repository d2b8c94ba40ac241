"""Lines that write to an array which shares a tensor's memory: followed from where they met."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradmend.model import Frame, Site
from gradmend.story.foreign import foreign_writes, suspects

MARK = "# written"


def at(file: Path, expression: str, line: int | None = None) -> Frame:
    """The frame that runs an expression of a file."""
    for number, text in enumerate(file.read_text().splitlines(), 1):
        if expression in text and line in (None, number):
            col = text.index(expression)
            return Frame(str(file), number, "f", "user", col, number, col + len(expression))
    raise AssertionError(expression)


def marked(file: Path) -> list[int]:
    return [n for n, text in enumerate(file.read_text().splitlines(), 1) if MARK in text]


PROGRAMS = {
    "named": "a = t.numpy()\na[0] = 1  # written\n",
    "argument": "buffer = np.zeros(3)\nt = torch.from_numpy(buffer)\nbuffer[:] = 2  # written\n",
    "packed": "buffer = bytearray(12)\nt = torch.frombuffer(buffer)\nstruct.pack_into('3f', buffer, 0, *v)  # written\n",
    "read_into": "buffer = bytearray(12)\nt = torch.frombuffer(buffer)\nfile.readinto(buffer)  # written\n",
    "view_of_it": "a = t.numpy()\nb = a[1:].reshape(-1)\nb.sort()  # written\n",
    "rows_in_a_loop": "a = t.numpy()\nfor i, row in enumerate(a):\n    row *= i  # written\n",
    "given_to_a_function": "def f(x, y):\n    y -= 1  # written\nf(2, t.numpy())\n",
    "given_by_keyword": "def f(x, y):\n    y -= 1  # written\nf(2, y=t.detach().numpy())\n",
    "given_on": "def g(z):\n    z.fill(0)  # written\ndef f(x):\n    g(x[1:])\na = t.numpy()\nf(a)\n",
    "given_to_a_method": "class C:\n    def f(self, x):\n        x[0] = 1  # written\nC().f(t.numpy())\n",
    "kept_on_self": "class C:\n    def __init__(self, t):\n        self.a = t.numpy()\n    def step(self):\n"
    "        self.a += 1  # written\n",
    "made_elsewhere": "class C:\n    def draw(self):\n        self.b[:] = 1  # written\n        return self.b\n"
    "a = c.draw()\nt = torch.from_numpy(a)\n",
    "one_of_a_list": "class C:\n    def step(self):\n        old = self.b.pop(0)\n        old[...] = 1  # written\n"
    "        self.b.append(old)\n        return self.b\nts = [torch.from_numpy(a) for a in c.step()]\n",
    "yielded": "def batches(b):\n    while True:\n        b.fill(2)  # written\n        yield b, 3\n"
    "for a, n in batches(np.zeros(3)):\n    t = torch.from_numpy(a)\n",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_follows_the_array(name: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAMS[name])
    ways = (
        "torch.frombuffer(buffer)",
        "torch.from_numpy(buffer)",
        "torch.from_numpy(a)",
        "t.detach().numpy()",
        "t.numpy()",
    )
    frame = at(file, next(way for way in ways if way in PROGRAMS[name]))
    assert [f.line for f in foreign_writes(Site((frame,)))] == marked(file)


@pytest.mark.parametrize(
    "text",
    [
        "a = t.numpy()\nb = a.copy()\nb[0] = 1\n",
        "def f(x):\n    y = x + 1\n    y[0] = 2\nf(t.numpy())\n",
        "def f(a):\n    a[0] = 1\ndef g(t):\n    a = t.numpy()\n    return a.sum()\n",
    ],
)
def test_accuses_nobody_else(text: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(text)
    assert foreign_writes(Site((at(file, "t.numpy()"),))) == []


def test_follows_into_another_file_and_back_to_the_caller(tmp_path: Path) -> None:
    other = tmp_path / "gm_other_file.py"
    other.write_text("def keep(boxes, scores):\n    scores[0] *= 0.5  # written\n")
    file = tmp_path / "program.py"
    file.write_text(
        "from gm_other_file import keep\n"
        "def to_numpy(t):\n    return t.detach().numpy()\n"
        "def run(t):\n    x = to_numpy(t)\n    keep(1, x)\n    return t\n"
    )
    frames = (at(file, "t.detach().numpy()"), at(file, "to_numpy(t)", 5))
    (found,) = suspects(Site(frames))
    assert (found.frame.file, found.frame.line) == (str(other), marked(other)[0])
    assert (found.level, found.line) == (1, 6)  # run() has it, and line 6 leads to the write


def test_follows_an_argument_to_the_caller(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "def prepare(net, obs):\n    return net(torch.from_numpy(obs))\n"
        "def run(env, net):\n    out = prepare(net, env.state)\n    env.state += 1  # written\n    return out\n"
    )
    frames = (at(file, "torch.from_numpy(obs)"), at(file, "prepare(net, env.state)"))
    assert [f.line for f in foreign_writes(Site(frames))] == marked(file)
