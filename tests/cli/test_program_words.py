"""Programs are run as python runs them, and options go to whom they are meant for."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from io import StringIO
from pathlib import Path

import pytest

import warm
from gradmend.cli.main import main
from gradmend.report.colour import coloured, painted_diff


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("env", "terminal", "file"),
    [
        ({}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"FORCE_COLOR": "0"}, True, False),
    ],
)
def test_colours(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], terminal: bool, file: bool) -> None:
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert (coloured(Terminal()), coloured(StringIO())) == (terminal, file)


def test_a_painted_diff_has_the_same_text() -> None:
    patch = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n c\n"
    painted = painted_diff(patch)
    assert "\x1b[31m-a\x1b[0m" in painted and "\x1b[32m+b\x1b[0m" in painted
    import re

    assert re.sub(r"\x1b\[\d+m", "", painted) == patch


@pytest.mark.parametrize(("command", "option"), [("fix", "--write"), ("run", "--heal")])
def test_an_option_after_the_script_is_refused_with_a_hint(
    command: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    assert main([command, str(script), option]) == 2
    said = capsys.readouterr().err
    assert f"gradmend {command} {option} ... {script}" in said and f"gradmend {command} -- {script}" in said


def test_the_programs_own_options_are_its_own(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("import sys\nprint(sys.argv[1:])  # knows --heal\n")
    other = tmp_path / "other.py"
    other.write_text("import sys\nprint(sys.argv[1:])\n")
    for words in ([str(own), "--heal"], ["--", str(other), "--heal"]):
        done = _gradmend("run", *words)
        assert done.stdout == "['--heal']\n", done.stderr


def test_a_zip_file_runs_and_file_is_absolute(tmp_path: Path) -> None:
    script = tmp_path / "here.py"
    script.write_text("import os\nprint(os.path.isabs(__file__), os.path.basename(__file__))\n")
    done = _gradmend("run", "here.py", cwd=tmp_path)
    assert done.stdout == "True here.py\n", done.stderr
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as file:
        file.writestr("__main__.py", "import sys, helper\nprint(helper.NAME, sys.argv[1:], __name__)\n")
        file.writestr("helper.py", "NAME = 'zipped'\n")
    plain = warm.run([sys.executable, "app.zip", "a"], cwd=tmp_path)
    done = _gradmend("run", "app.zip", "a", cwd=tmp_path)
    assert done.stdout == plain.stdout == "zipped ['a'] __main__\n", done.stderr
    assert _gradmend("fix", "app.zip", cwd=tmp_path).returncode == 2


def test_a_test_file_run_as_a_script_says_that_no_backward_ran(tmp_path: Path) -> None:
    (tmp_path / "test_model.py").write_text("def test_it():\n    pass\n")
    done = _gradmend("run", "test_model.py", cwd=tmp_path)
    assert done.returncode == 0 and "no backward() ran" in done.stderr and "-m pytest" in done.stderr


def test_fix_takes_a_module(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("from .model import run\n\nrun()\n")
    model = package / "model.py"
    model.write_text(
        "import torch\n\n\ndef run():\n    x = torch.ones(3, requires_grad=True)\n    y = x.exp()\n    y += 1\n    y.sum().backward()\n"
    )
    done = _gradmend("fix", "--write", "-m", "pkg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "    y = y + 1\n" in model.read_text()


def _gradmend(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "TERM")}
    return warm.run([sys.executable, "-m", "gradmend", *words], cwd=cwd, env=env)
