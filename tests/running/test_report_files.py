"""The files that a run leaves: of the user's own umask, whole or not there, with command, date and versions in them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "import torch\ntorch.ones(2, requires_grad=True).exp().sum().backward()\n"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_reports_have_the_users_umask(tmp_path: Path, mask: int) -> None:
    (tmp_path / "clean.py").write_text(PROGRAM)
    words = ["-m", "gradmend", "run", "--report", "out.json", "--html", "out.html", "clean.py", "--lr", "a b"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, umask=mask, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("out.json", "out.html"):
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o666 & ~mask
    run = json.loads((tmp_path / "out.json").read_text())["run"]
    assert run["command"] == "gradmend run clean.py --lr 'a b'" and run["program"] == "clean.py"
    assert {"date", "torch", "python", "gradmend"} <= run.keys()
    page = (tmp_path / "out.html").read_text()
    assert run["date"] in page and run["torch"] in page and "gradmend run clean.py" in page
    assert not list(tmp_path.glob(".gradmend-*"))
