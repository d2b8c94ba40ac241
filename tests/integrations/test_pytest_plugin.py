"""The plugin in a pytest of its own: what it says, what it leaves alone, what it costs when off."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import warm

TESTS = """\
import pytest
import torch


def broken():
    h = torch.ones(3, requires_grad=True).exp()
    h += 1
    h.sum().backward()


def test_raises():
    broken()


def test_silent():
    h = torch.ones(3, requires_grad=True).exp()
    h.data += 1
    h.sum().backward()


def test_fine():
    h = torch.ones(3, requires_grad=True) + 1
    h += 1
    h.sum().backward()


def test_expects_the_error():
    with pytest.raises(RuntimeError):
        broken()


def test_refused_but_right():
    h = torch.ones(3, requires_grad=True).exp()
    h.add_(0)
    h.sum().backward()


@pytest.mark.gradmend(False)
def test_left_alone():
    h = torch.ones(3, requires_grad=True).exp()
    h.data += 1
    h.sum().backward()


@pytest.mark.gradmend(heal=True)
def test_healed():
    broken()


@pytest.mark.gradmend
def test_marked():
    h = torch.ones(3, requires_grad=True).exp()
    h.data += 1
    h.sum().backward()
"""
UNSEEN = """\
import pytest, torch

x = torch.ones(3, requires_grad=True)

@pytest.fixture
def made():
    return x.exp()

def test_made_before(made):
    made.data.add_(1)
    made.sum().backward()

def test_caught():
    h = x.exp()
    h.data.add_(1)
    try:
        h.sum().backward()
    except RuntimeError:
        pass
"""
CASES = """\
import unittest, torch

def broken():
    h = torch.ones(3, requires_grad=True).exp()
    h += 1
    h.sum().backward()

class TestIt(unittest.TestCase):
    def test_raises(self):
        broken()

    def test_parts(self):
        for i in range(2):
            with self.subTest(i=i):
                broken()

    def test_another_error_of_it(self):
        try:
            broken()
        except RuntimeError as error:
            raise KeyError("mine") from error
"""
NOTHING = """\
import sys


def test_it():
    loaded = {m for m in sys.modules if m.startswith("gradmend") or m == "torch"}
    assert loaded <= {"gradmend", "gradmend.integrations", "gradmend.integrations.pytest_plugin"}
"""


def run(
    folder: Path, source: str, *words: str, ini: str = "", cold: bool = False
) -> tuple[dict[str, str], str]:
    """Which tests passed and which failed, and all that was printed."""
    (folder / "test_it.py").write_text(source)
    (folder / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    # Named only where it is not installed already: an editable install of an older tree has no entry point.
    installed = "gradmend" in entry_points(group="pytest11").names
    plugin = [] if installed else ["-p", "gradmend.integrations.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "no:xdist", *plugin]
    env = {**os.environ, "COLUMNS": "140", "PYTEST_ADDOPTS": "", "GRADMEND": "0"}
    done = warm.run([*command, *words], cwd=folder, env=env, cold=cold)
    found = {}
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" test_it.py::")
        if rest and word in ("PASSED", "FAILED", "ERROR"):
            found[rest.split(" ")[0]] = word
    assert found, done.stdout + done.stderr
    return found, done.stdout


def test_every_test_is_watched(tmp_path: Path) -> None:
    found, told = run(tmp_path, TESTS, "--gradmend")
    assert found == {
        "test_raises": "FAILED",
        "test_silent": "FAILED",
        "test_fine": "PASSED",
        "test_expects_the_error": "PASSED",
        "test_refused_but_right": "PASSED",
        "test_left_alone": "PASSED",
        "test_healed": "PASSED",
        "test_marked": "FAILED",
    }
    assert "ConflictError" in told and "test_it.py:7" in told and "h += 1" in told
    ours = [line for line in told.splitlines() if "gradmend/capture" in line or "gradmend/watching" in line]
    assert ours == [], "no frame of ours in a failure"
    assert "healed[GM101]" in told, "what was healed is no error"
    assert "warning[" in told, "what PyTorch would refuse is told in the section of the test that passed"


@pytest.mark.slow
def test_an_ini_file_and_marks_ask_for_it_too(tmp_path: Path) -> None:
    found, _ = run(tmp_path, TESTS, ini="gradmend = true")
    assert found["test_silent"] == "FAILED"
    found, _ = run(tmp_path, TESTS)
    assert found["test_silent"] == "PASSED", "off unless asked for"
    assert found["test_marked"] == "FAILED" and found["test_healed"] == "PASSED"
    assert found["test_raises"] == "FAILED" and found["test_refused_but_right"] == "FAILED"


@pytest.mark.slow
def test_all_frames_are_there_for_those_who_ask(tmp_path: Path) -> None:
    _, told = run(tmp_path, TESTS, "--gradmend", "--full-trace", "-k", "test_raises")
    assert "gradmend/" in told


def test_what_the_docs_say_is_not_seen(tmp_path: Path) -> None:
    found, _ = run(tmp_path, UNSEEN, "--gradmend")
    assert found == {"test_made_before": "PASSED", "test_caught": "PASSED"}


def test_a_case_of_unittest_shows_no_frame_of_ours(tmp_path: Path) -> None:
    found, told = run(tmp_path, CASES, "--gradmend")
    assert found["TestIt::test_raises"] == found["TestIt::test_another_error_of_it"] == "FAILED"
    assert "[GM101]" in told and "h += 1" in told
    assert [line for line in told.splitlines() if "gradmend/capture" in line or "gradmend/api" in line] == []


def test_off_it_loads_nothing(tmp_path: Path) -> None:
    found, told = run(tmp_path, NOTHING, cold=True)
    assert found == {"test_it": "PASSED"}, told


def test_a_word_that_the_mark_does_not_know_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "test_typo.py").write_text(
        "import pytest\n@pytest.mark.gradmend(paranoyd=True)\ndef test_it(): pass\n"
    )
    done = warm.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_typo.py"],
        cwd=tmp_path,
    )
    assert done.returncode == 1 and "Traceback" not in done.stdout and "TypeError" not in done.stdout
    assert "During handling" not in done.stdout and "_read()" not in done.stdout
    assert "@pytest.mark.gradmend: it got an unexpected keyword argument 'paranoyd'" in done.stdout
