"""The files that a run leaves: of the user's own umask, whole or not there, with command, date and versions in them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import warm
from gradmend.running.output import replace

PROGRAM = "import torch\ntorch.ones(2, requires_grad=True).exp().sum().backward()\n"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_reports_have_the_users_umask(tmp_path: Path, mask: int) -> None:
    (tmp_path / "clean.py").write_text(PROGRAM)
    words = ["-m", "gradmend", "run", "--report", "out.json", "--html", "out.html", "clean.py", "--lr", "a b"]
    done = warm.run([sys.executable, *words], cwd=tmp_path, umask=mask)
    assert done.returncode == 0, done.stderr
    for name in ("out.json", "out.html"):
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o666 & ~mask
    run = json.loads((tmp_path / "out.json").read_text())["run"]
    assert run["command"] == "gradmend run clean.py --lr 'a b'" and run["program"] == "clean.py"
    assert {"date", "torch", "python", "gradmend"} <= run.keys()
    page = (tmp_path / "out.html").read_text()
    assert run["date"] in page and run["torch"] in page and "gradmend run clean.py" in page
    assert not list(tmp_path.glob(".gradmend-*"))


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real.html", tmp_path / "link.html"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    replace(str(link), "new")
    assert link.is_symlink() and real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        replace(str(pipe), "words")
        assert reader.stdout is not None and reader.stdout.read() == "words"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--html", "folder", "clean.py"], "folder: it is a folder"),
        (["--html", "clean.py", "clean.py"], "clean.py: it is the program"),
        (["--html", "out", "--report", "./out", "clean.py"], "can't write two reports to"),
    ],
)
def test_what_would_be_lost_is_told_before_the_run(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "clean.py").write_text(PROGRAM)
    (tmp_path / "folder").mkdir()
    ran = warm.run([sys.executable, "-m", "gradmend", "run", *words], cwd=tmp_path)
    assert ran.returncode == 2
    assert said in ran.stderr and len(ran.stderr.splitlines()) == 1
    assert (tmp_path / "clean.py").read_text() == PROGRAM
