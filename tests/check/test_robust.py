"""It never crashes, and its cost grows with the source: generated, mutated and hostile input."""

from __future__ import annotations

import ast
import random
import sys
import sysconfig
from pathlib import Path

import pytest
from check_programs import PROGRAMS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradmend.check.analysis import analyse
from gradmend.check.files import check_file
from gradmend.check.project import Project
from gradmend.check.walk.walker import Walker

SOURCES = [source for _, _, source in PROGRAMS.values()]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False), st.sampled_from(SOURCES))
def test_mutated_text(rng: random.Random, source: str) -> None:
    text = list(source)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(text))
        text[at : at + rng.randint(0, 4)] = rng.choice(
            ["", "(", ")", "\n", " ", "x", "[0]", "+=", ".data", "é", "*", ":"]
        )
    check_file("/nowhere/m.py", "".join(text).encode())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_statements_of_all_programs_shuffled(rng: random.Random) -> None:
    """Valid syntax without sense: every kind of statement meets values of every kind."""
    pool = [s for source in SOURCES for s in ast.parse(source).body]
    body = [rng.choice(pool) for _ in range(rng.randint(3, 25))]
    tree = ast.fix_missing_locations(ast.Module(body, []))
    analyse("/nowhere/m.py", tree, Project({"/nowhere/m.py": tree}))


STDLIB = Path(sysconfig.get_paths()["stdlib"])


@pytest.mark.slow
def test_files_of_the_standard_library() -> None:
    """Its own tests are the strangest Python there is; one in sixty of them."""
    files = sorted((STDLIB / "test").glob("test_*.py")) or sorted(STDLIB.glob("*.py"))
    for file in files[7::60]:
        tree = None
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            continue
        # Past the filter that would spare them.
        analyse(str(file), tree, Project({str(file): tree}))
        assert not check_file(str(file)).unreadable


@pytest.mark.parametrize(
    "source",
    [
        b"\xff\xfe\x00x",
        b"# -*- coding: latin-1 -*-\nimport torch\nx = '\xe9'\ny = torch.exp(x)\ny += 1\n",
        b"import torch\nx = '\xe9'\n",
        b"# coding: nonsense\nimport torch\nx += 1\n",
        b"import torch\nx += " + b"(" * 5000 + b"1" + b")" * 5000,
        b"import torch\nx = torch.ones(3)\nx += " + b"-" * 3000 + b"1\n",
        b"import torch\nx += " + b"+".join([b"x"] * 3000) + b"\n",
        b"import torch\n" + b"".join(b" " * i + b"if x:\n" for i in range(90)) + b" " * 90 + b"x += 1\n",
        b"",
        b"\n\n\n",
        b"\xef\xbb\xbfimport torch\nx = torch.ones(1)\nx += 1\n",
        b"import torch\r\nx = torch.ones(1)\r\nx += 1\r\n",
        b"import torch\nfrom . import *\nfrom .. import x\nimport a.b.c as d\nx += 1\n",
        b"import torch\nclass A(A): pass\nclass B(C): pass\nclass C(B): pass\nB().x += 1\n",
        b"import torch\ndef f(x):\n  x[()] = 1\n  x[()] += x[()]\n  del x[()]\n",
        b"import torch\ndef f(x): return f(f(x))\ny = f(torch.ones(2))\ny += 1\n",
        b"import torch\na = b = c = torch.ones(2)\na, *b, c = a, b\nb[c][a] += 1\ndel a, b\na += 1\n",
        b"import torch\nx = [x for x in x for x in x if x]\nx[0] += 1\nlambda *a, **k: a\nasync def f():\n  async with a as b: await b\n",
    ],
)
def test_hostile_source(source: bytes) -> None:
    result = check_file("/nowhere/h.py", source)
    assert not result.unreadable


WRONG = "x = torch.ones(3, requires_grad=True)\ny = x.exp()\n{}y += 1\ny.sum().backward()\n"


@pytest.mark.parametrize(
    "between",
    [
        "k = " + " + ".join(["x"] * 2500) + "\n",
        "".join(f"{'el' if i else ''}if n == {i}:\n    z = y * {i}\n" for i in range(500)),
        "match n:\n" + "".join(f"    case {i}:\n        z = y * {i}\n" for i in range(500)),
    ],
)
def test_long_chains_are_followed_to_their_end(between: str) -> None:
    found = check_file("/nowhere/h.py", ("import torch\n" + WRONG.format(between)).encode()).findings
    assert [f.rule for f in found] == ["GM101"]


def test_what_is_nested_too_deeply_is_told_and_the_rest_is_checked() -> None:
    deep = "k = " + "-" * 2900 + "x\n"
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(3000)
    try:
        found = check_file("/nowhere/h.py", ("import torch\n" + WRONG.format(deep)).encode()).findings
    finally:
        sys.setrecursionlimit(limit)
    assert [(f.rule, f.place.line) for f in found] == [("GM000", 4), ("GM101", 5)]


def test_an_arm_that_leaves_is_not_on_the_path_after_a_long_chain() -> None:
    arms = "".join(
        f"    {'el' if i else ''}if n == {i}:\n        y += {i}\n        return y\n" for i in range(40)
    )
    source = (
        f"import torch\ndef f(x, n):\n    y = x * 2\n    z = y * y\n{arms}    return z\n"
        "f(torch.ones(3, requires_grad=True), int(input())).sum().backward()\n"
    )
    assert check_file("/nowhere/h.py", source.encode()).findings == []


def steps(n: int) -> int:
    """What walking a function of n lines takes."""
    lines = ["import torch", "def f(x, w):", "    y = torch.tanh(w(x))"]
    for i in range(n // 4):
        lines += [f"    if x.a{i}:", "        y += 1", f"    z{i} = y * x", "    y[0] = 1"]
    source = "\n".join([*lines, "    return y", ""])
    tree = ast.parse(source)
    walker = Walker(Project({"/nowhere/f.py": tree}), 10**9)
    module = walker.project.module("/nowhere/f.py")
    from gradmend.check.analysis import _alone
    from gradmend.check.values import Function
    from gradmend.check.walk.frames import Frame

    walker.frames.append(Frame(module, module.env))
    walker.run_block(tree.body)
    function = module.env["f"]
    assert isinstance(function, Function)
    _alone(walker, function, [], module)
    return 10**9 - walker.left


def test_cost_grows_linearly() -> None:
    assert steps(2000) < 2.2 * steps(1000)


def test_a_function_of_twenty_thousand_lines() -> None:
    assert steps(20_000) < 60 * 20_000
