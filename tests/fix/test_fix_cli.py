"""The command: exit codes, the diff, the report, and that a second run changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

BROKEN = """import torch

torch.manual_seed(0)
lin = torch.nn.Linear(3, 3)
h = torch.sigmoid(lin(torch.randn(4, 3)))  # saved
h += 1  # overwritten
loss = (h * h).sum()
loss.backward()
print(loss.item())
"""


def gradmend(cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradmend", "fix", *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


def test_shown_then_written_then_nothing_left(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(BROKEN)
    shown = gradmend(tmp_path, "--report", "out.json", "main.py")
    assert shown.returncode == 0, shown.stderr
    assert "-h += 1  # overwritten\n+h = h + 1  # overwritten\n" in shown.stdout
    assert "proven: 1 backward call, 2 gradients equal to rounding" in shown.stdout
    assert "cost: +" in shown.stdout
    assert script.read_text() == BROKEN
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["schema"] == 1 and report["outcome"] == "conflict"
    fix = report["conflicts"][0]["fixes"][0]
    assert fix["status"] == "proven" and fix["diff"].startswith("--- a/main.py")
    assert report["fix"]["written"] is False and report["fix"]["extra_bytes"] > 0

    assert gradmend(tmp_path, "--write", "main.py").returncode == 0
    fixed = script.read_text()
    assert fixed == BROKEN.replace("h += 1", "h = h + 1")
    again = gradmend(tmp_path, "--write", "main.py")
    assert again.returncode == 0 and "nothing to fix" in again.stdout
    assert script.read_text() == fixed


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], "no program given"),
        (["missing.py"], "no such file"),
        (["--steps", "0", "main.py"], "--steps"),
        (["--report", "nowhere/out.json", "main.py"], "no folder"),
        (["broken.py"], "Python can't run it either"),
        (["coded.py"], "cannot read"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path: Path, args: list[str], told: str) -> None:
    (tmp_path / "main.py").write_text("pass\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "coded.py").write_bytes(b"x = '\xff'\n")
    run = gradmend(tmp_path, *args)
    assert run.returncode == 2 and told in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1 and "Traceback" not in run.stderr


def test_no_proof_exits_1_and_changes_nothing(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        BROKEN.replace("torch.manual_seed(0)", "import time; torch.manual_seed(time.time_ns() % 2**31)")
    )
    before = script.read_text()
    run = gradmend(tmp_path, "--write", "main.py")
    assert run.returncode == 1 and "not deterministic" in run.stdout
    assert script.read_text() == before


OPEN = """import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
x = torch.linspace(0, 1, 5)[:, None].requires_grad_()
u = net(x)
u_x = torch.autograd.grad(u.sum(), x)[0]
(u_x - u).pow(2).mean().backward()
"""


def test_unproven_is_written_only_when_asked(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(OPEN)
    shown = gradmend(tmp_path, "--write", "main.py")
    assert shown.returncode == 1 and "ambiguous" in shown.stdout and "nothing was changed" in shown.stdout
    assert "create_graph=True" in shown.stdout and script.read_text() == OPEN
    forced = gradmend(tmp_path, "--write", "--unsafe", "main.py")
    assert forced.returncode == 1 and "written because of --unsafe" in forced.stdout
    assert script.read_text() == OPEN.replace("(u.sum(), x)", "(u.sum(), x, create_graph=True)")


def test_ctrl_c_cleans_up(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import time\ntime.sleep(120)\n")
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "gradmend", "fix", "main.py"]
    # As in a terminal: a child of one that ignores SIGINT (nohup) would ignore it too.
    run = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not list((tmp_path / "tmp").glob("gradmend-fix-*/run1.stdout")) and time.monotonic() < deadline:
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=60)
    assert run.returncode == 130 and "nothing was changed" in told
    assert not list((tmp_path / "tmp").iterdir())
    assert tempfile.gettempdir() != str(tmp_path / "tmp")
