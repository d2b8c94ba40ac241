"""`gradmend run`, `--heal`, `--audit` and `fix` of a script whose tensors lie on the walled device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Child

_SCRIPT = """
import time, torch

device = torch.device("walled")
torch.manual_seed(0)
layer = torch.nn.Linear(3, 3).to(device)
x = torch.ones(2, 3, device=device)
h = torch.sigmoid(layer(x))
h += 1
loss = h.sum()
loss.backward()
time.sleep(0.5)  # PyTorch aborts a process that ends while a device's thread still lets go of the graph (2.13)
print("done")
"""
_LINE = 9  # h += 1
_SILENT = _SCRIPT.replace("h += 1\nloss = h.sum()", "loss = h.sum()\nh.data.add_(1)")


def gradmend(child: Child, tmp_path: Path, text: str, *args: str) -> tuple[int, str, dict[str, object]]:
    script, report = tmp_path / "train.py", tmp_path / "out.json"
    script.write_text(text)
    command, *options = args
    done = child("-m", "gradmend", command, "--report", str(report), *options, str(script), autoload=True)
    told = json.loads(report.read_text()) if report.exists() else {}
    return done.returncode, done.stdout + done.stderr, told


@pytest.mark.slow
def test_run_names_the_line(child: Child, tmp_path: Path) -> None:
    code, said, report = gradmend(child, tmp_path, _SCRIPT, "run")
    assert code == 1, said
    (conflict,) = report["conflicts"]  # type: ignore[misc]
    assert conflict["culprits"][0]["line"] == _LINE and conflict["backward"]["line"] == _LINE + 2


@pytest.mark.slow
def test_run_heals(child: Child, tmp_path: Path) -> None:
    code, said, report = gradmend(child, tmp_path, _SCRIPT, "run", "--heal")
    assert (code, report["outcome"]) == (0, "healed"), said


@pytest.mark.parametrize(("text", "code"), [(_SILENT, 1), (_SILENT.replace("h.data", "h.clone().data"), 0)])
def test_audit(child: Child, tmp_path: Path, text: str, code: int) -> None:
    found, said, _ = gradmend(child, tmp_path, text, "run", "--audit")
    assert found == code and f"is {'wrong' if code else 'right'} in" in said


@pytest.mark.slow
def test_fix_proves_on_the_device(child: Child, tmp_path: Path) -> None:
    code, said, _ = gradmend(child, tmp_path, _SCRIPT, "fix", "--write")
    assert code == 0, said
    done = child(str(tmp_path / "train.py"), autoload=True)
    assert done.stdout == "done\n", done.stderr
