"""`make test-autograd`: PyTorch's own tests in four ways. Here a small stand-in for that file, with one test of each end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "autograd_ways.py"
STAND_IN = """
import unittest
import torch


class TestAutograd(unittest.TestCase):
    def test_the_same_in_every_way(self):
        x = torch.ones(3, requires_grad=True)
        x.exp().sum().backward()
        self.assertEqual(x.grad.tolist(), x.exp().tolist())

    def test_silent(self):
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.data.mul_(2)
        y.sum().backward()

    def test_expects_the_error(self):
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        y.mul_(2)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            y.sum().backward()

    @unittest.skip("not here")
    def test_skipped(self):
        pass
"""


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), *words], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_what_ends_otherwise_is_named_with_why(tmp_path: Path) -> None:
    file = tmp_path / "test_autograd.py"
    file.write_text(STAND_IN)
    done = ran(str(file))
    told = done.stdout
    assert done.returncode == 1, told + done.stderr
    assert "plain: 3 passed, 1 skipped" in told
    watch, heal, install = (
        told.split(f"\n{way}: ")[1].split("\n\n")[0] for way in ("watch", "heal", "install")
    )
    assert watch.startswith("1 failed, 2 passed, 1 skipped; 1 end otherwise than plain")
    assert "::test_silent: passed -> failed: gradmend" in watch.split("heal: ")[0]
    assert "::test_expects_the_error: passed -> failed: AssertionError: RuntimeError not raised" in heal
    assert install.startswith("3 passed, 1 skipped; 0 end otherwise")
    assert "test_the_same_in_every_way" not in told


def test_a_file_that_is_not_there_is_one_line() -> None:
    done = ran("nowhere/test_autograd.py")
    assert done.returncode == 2 and "there is no file nowhere/test_autograd.py" in done.stderr
