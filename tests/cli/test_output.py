"""A stdout that is closed, full or plain ASCII, a stdin that is closed, a folder that is gone: one line, never our traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = "import torch\nx = torch.ones(3, requires_grad=True)\né = x.exp()\né += 1\né.sum().backward()\n"
GRADMEND = f"'{sys.executable}' -m gradmend"
unix = pytest.mark.skipif(os.name != "posix", reason="a shell's redirections")


def ran(folder: Path, command: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "a.py").write_text(SOURCE, encoding="utf-8")
    return subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


@unix
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has it")
@pytest.mark.parametrize(
    "words",
    [
        "check --no-cache a.py",
        "check --no-cache --diff a.py",
        "check --no-cache --statistics a.py",
        "explain GM101",
    ],
)
def test_a_full_disk(words: str, tmp_path: Path) -> None:
    done = ran(tmp_path, f"{GRADMEND} {words} >/dev/full")
    assert (done.returncode, done.stderr) == (2, "gradmend: can't write to stdout: No space left on device\n")


@unix
@pytest.mark.parametrize("words", ["check --no-cache a.py", "check --no-cache --diff a.py", "explain GM101"])
def test_a_closed_stdout(words: str, tmp_path: Path) -> None:
    done = ran(tmp_path, f"{GRADMEND} {words} >&-")
    assert (done.returncode, done.stderr) == (2, "gradmend: stdout is closed: there is nowhere to write to\n")


@unix
@pytest.mark.parametrize("words", ["check -", "explain", "explain -"])
def test_a_closed_stdin(words: str, tmp_path: Path) -> None:
    done = ran(tmp_path, f"{GRADMEND} {words} <&-")
    assert done.returncode == 2 and "stdin is closed" in done.stderr and done.stderr.count("\n") == 1


@unix
def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    done = ran(tmp_path, f"mkdir d; cd d; rmdir ../d; echo 'x = 1' | {GRADMEND} check -")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "gradmend: the current folder is gone: change to one that is there",
    )
    assert "Traceback" not in done.stderr


@unix
@pytest.mark.parametrize("words", ["--diff", "", "--output-format concise"])
def test_letters_that_stdout_has_not(words: str, tmp_path: Path) -> None:
    done = ran(tmp_path, f"{GRADMEND} check --no-cache -q {words} a.py", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (1, "") and r"\xe9" in done.stdout


@unix
def test_a_number_that_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f"a = {'1' * 5000}\n")
    done = ran(tmp_path, f"{GRADMEND} check --no-cache a.py")
    assert done.returncode == 2 and "pyproject.toml: Exceeds" in done.stderr and done.stderr.count("\n") == 1
