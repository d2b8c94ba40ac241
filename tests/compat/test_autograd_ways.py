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


SPARSE = """
import unittest
import torch


class TestSparse(unittest.TestCase):
    def test_values_of_a_leaf(self):
        A = torch.eye(2).to_sparse().requires_grad_()
        A.sum().backward()
        self.assertEqual(A.grad.layout, torch.strided)

    def test_doubled_by_torch(self):
        w = torch.ones(2, requires_grad=True)
        index = torch.tensor([[0, 0], [1, 1]])
        out = torch.sparse_coo_tensor(index, w, (2, 2)) @ torch.eye(2)
        (g,) = torch.autograd.grad(out.pow(3).sum(), w, create_graph=True)
        self.assertTrue(g.requires_grad)

    def test_only_plain(self):
        self.assertNotIn("gradmend", torch.sparse_coo_tensor.__code__.co_filename
                         if hasattr(torch.sparse_coo_tensor, "__code__") else "")
"""


@pytest.mark.slow
def test_gains_are_listed_and_are_no_failure(tmp_path: Path) -> None:
    file = tmp_path / "test_sparse.py"
    file.write_text(SPARSE)
    done = ran("--way", "patch", str(file), "-k", "not only_plain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "patch: 2 passed; 1 end otherwise than plain" in done.stdout
    assert "::test_doubled_by_torch: failed -> passed" in done.stdout
    done = ran("--way", "patch", str(file))
    assert done.returncode == 1 and "::test_only_plain: passed -> failed" in done.stdout


def test_a_file_that_is_not_there_is_one_line() -> None:
    done = ran("nowhere/test_autograd.py")
    assert done.returncode == 2 and "there is no file nowhere/test_autograd.py" in done.stderr
