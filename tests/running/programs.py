"""Runs a program in a process of its own, under `gradmend run` or under plain python, and reads what it left."""

import json
import os
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest

import warm

MODES = pytest.mark.parametrize(
    "mode",
    [
        pytest.param([], id="watch"),
        pytest.param(["--heal"], id="--heal", marks=pytest.mark.slow),
        pytest.param(["--audit"], id="--audit", marks=pytest.mark.slow),
    ],
)
BROKEN = """
import torch
x = torch.ones(3, requires_grad=True)
y = x.exp()
y += 1
y.sum().backward()
print("not reached")
"""
CLEAN = """
import torch
x = torch.ones(3, requires_grad=True)
(x * x).sum().backward()
print("gradient", x.grad.tolist())
"""


@dataclass
class Ran:
    code: int
    out: str
    err: str
    report: dict[str, Any] | None


class Program:
    """A script in a folder of its own."""

    def __init__(self, folder, text, name="program.py"):
        self.folder = folder
        self.path = folder / name
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(textwrap.dedent(text).lstrip("\n"))

    def line(self, text):
        lines = self.path.read_text().splitlines()
        (at,) = [i for i, line in enumerate(lines, 1) if text in line]
        return at

    def python(self, *args, **options):
        """The oracle: an interpreter of its own."""
        return launch([sys.executable, str(self.path), *args], self.folder, None, **{"cold": True, **options})

    def gradmend(self, *args, before=(), **options):
        report = self.folder / "report.json"
        words = ["run", "--report", str(report), *before, str(self.path), *args]
        return launch([sys.executable, "-m", "gradmend", *words], self.folder, report, **options)


def launch(words, folder, report=None, env=None, stdin=None, timeout=120, interrupt="heeded", cold=False):
    done = warm.run(
        words,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **(env or {})},
        input=stdin,
        timeout=timeout,
        interrupt=interrupt,
        cold=cold,
    )
    told = json.loads(report.read_text()) if report is not None and report.exists() else None
    return Ran(done.returncode, done.stdout, done.stderr, told)
