"""Graphs of any depth are built, backed through and freed, where plain PyTorch can.

The children run on a small stack, on which a chain of some 6,000 nodes that are freed by recursion ends the process; or
on the usual 8 MB, which takes some 50,000.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deep_programs import PROGRAMS, REFUSED

resource = pytest.importorskip("resource")

HERE = Path(__file__).parent
SMALL, USUAL = 1 << 20, 8 << 20  # bytes of stack
DEEP = 8_000  # nodes: too many for the small one
POLICIES = "watch", "heal", "install"
BUILDS = pytest.mark.parametrize("pure", ["0", "1"], ids=["compiled", "pure"])


def child(stack: int, pure: str, *command: str, cwd: Path = HERE) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        _, most = resource.getrlimit(resource.RLIMIT_STACK)
        resource.setrlimit(resource.RLIMIT_STACK, (stack, most))

    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "GRADMEND_PURE": pure},
        cwd=cwd,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, f"ended by {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done


def gradients(stack: int, pure: str, policy: str, size: int, *names: str) -> dict[str, float]:
    done = child(stack, pure, "deep_programs.py", policy, str(size), *names)
    return {name: float(value) for name, value in map(str.split, done.stdout.splitlines())}


def plain_can(name: str) -> bool:
    """Whether such a graph can be freed at all: since Python 3.12, nested objects take more of the stack."""
    try:
        return gradients(SMALL, "0", "plain", DEEP, name) == {name: 1.0}
    except AssertionError:
        return False


@pytest.mark.parametrize(
    ("policy", "pure"),
    [
        ("heal", "0"),
        pytest.param("watch", "0", marks=pytest.mark.slow),
        pytest.param("install", "0", marks=pytest.mark.slow),
        pytest.param("heal", "1", marks=pytest.mark.slow),
        pytest.param("watch", "1", marks=pytest.mark.ops),
        pytest.param("install", "1", marks=pytest.mark.ops),
    ],
)
def test_every_shape(policy: str, pure: str) -> None:
    names = set(PROGRAMS)
    if (
        policy == "install"
    ):  # it leaves a graph as it is: no deeper than plain PyTorch goes, here with custom functions
        names -= REFUSED | (set() if plain_can("functions") else {"functions"})
    assert gradients(SMALL, pure, policy, DEEP, *sorted(names)) == dict.fromkeys(names, 1.0)


def test_a_long_chain_on_the_usual_stack() -> None:
    assert gradients(USUAL, "0", "heal", 100_000, "chain") == {"chain": 1.0}


@pytest.mark.ops  # minutes each
@BUILDS
@pytest.mark.parametrize("policy", POLICIES)
def test_a_million_nodes(policy: str, pure: str) -> None:
    names = "chain", "retained", "dropped"
    assert gradients(USUAL, pure, policy, 1_000_000, *names) == dict.fromkeys(names, 1.0)
    names = set(PROGRAMS) - (REFUSED if policy == "install" else set())
    assert gradients(USUAL, pure, policy, 120_000) == dict.fromkeys(names, 1.0)


def peak(policy: str, size: int, name: str) -> int:
    """Bytes of memory at its peak."""
    done = child(USUAL, "0", "deep_programs.py", policy, str(size), name)
    return int(done.stderr.split()[-2]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status")
@pytest.mark.parametrize(("policy", "name"), [("watch", "chain"), ("heal", "chain"), ("heal", "overwritten")])
def test_memory_grows_as_the_graph_does(policy: str, name: str) -> None:
    """A node costs the same in a graph that is twice as deep. `-s` shows how much, and how much it is in plain PyTorch."""
    none, small, large = (peak(policy, n, name) for n in (100, 30_000, 60_000))
    plain = (peak("plain", 60_000, "chain") - peak("plain", 100, "chain")) / 60_000
    print(
        f"{name} under {policy}: {(large - none) / 60_000:.0f} bytes a node; a chain in plain PyTorch: {plain:.0f}"
    )
    assert large - none < 2.5 * (small - none) + (4 << 20)


CHAIN = """
import torch
x = torch.ones(1, dtype=torch.float64, requires_grad=True)
h = x
for _ in range(15_999):
    h = h * x
h.backward()
del h
print(float(x.grad))
"""

CONFLICT = """
import torch
x = torch.ones(1, dtype=torch.float64, requires_grad=True)
h = x
for _ in range(8_000):
    a = h * x
    h = a * x
    a += 1
h.backward()
print(float(x.grad))
"""


@pytest.mark.parametrize("pure", ["0", pytest.param("1", marks=pytest.mark.slow)], ids=["compiled", "pure"])
def test_audited(tmp_path: Path, pure: str) -> None:
    """The audit walks through the whole graph for its leaves."""
    (tmp_path / "program.py").write_text(CHAIN)
    done = child(SMALL, pure, "-m", "gradmend", "run", "--audit", "program.py", cwd=tmp_path)
    assert done.stdout == "16000.0\n"
    assert "the gradient is right" in done.stderr


@pytest.mark.parametrize("pure", ["0", pytest.param("1", marks=pytest.mark.ops)], ids=["compiled", "pure"])
def test_fixed(tmp_path: Path, pure: str) -> None:
    (tmp_path / "program.py").write_text(CONFLICT)
    done = child(SMALL, pure, "-m", "gradmend", "fix", "program.py", cwd=tmp_path)
    assert "+    a = a + 1" in done.stdout
    assert "proven" in done.stdout
