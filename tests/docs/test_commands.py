"""Commands in README and docs are run: each `$ line` of a console block, in a folder with the files of docs/samples."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```console\n(.*?)^```", re.M | re.S)
# What stops with a story, or finds something, ends with 1: that is what the page is about.
STOPS = {
    "gradmend run train.py", "gradmend run silent.py", "gradmend run --audit silent.py", "gradmend dry-run big.py:step",
    "gradmend check silent.py", "gradmend check .", "gradmend run --audit train.py",
}  # fmt: skip
LEFT_OUT = ("make ", "pip ", "git ")  # they set up, or run other tests


def commands(page: Path) -> list[str]:
    lines = [line for block in BLOCK.findall(page.read_text()) for line in block.splitlines()]
    found = [line[2:].partition("  #")[0].strip() for line in lines if line.startswith("$ ")]
    if page.name == "README.md":  # its table of what to use when
        found += dict.fromkeys(re.findall(r"`(gradmend (?:doctor|[a-z-]+ [^`]+))`", page.read_text()))
    return [one for one in found if not one.startswith(LEFT_OUT)]


WITH = [page for page in PAGES if commands(page)]


def test_there_are_commands() -> None:
    names = {page.name for page in WITH}
    assert {"README.md", "first-five-minutes.md", "pytest.md", "processes.md", "dry-run.md"} <= names


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH, ids=lambda page: page.name)
def test_every_command_runs(page: Path, tmp_path: Path) -> None:
    for sample in (ROOT / "docs" / "samples").iterdir():
        if sample.is_file():
            shutil.copy(sample, tmp_path)
    written = False
    for command in commands(page):
        words = shlex.split(command.partition("<")[0])
        stdin = (tmp_path / command.partition("<")[2].strip()).read_text() if "<" in command else None
        module = {"torchrun": "torch.distributed.run"}.get(words[0], words[0])
        assert module in ("gradmend", "pytest", "torch.distributed.run", "python"), command
        start = [sys.executable] if module == "python" else [sys.executable, "-m", module]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
        done = subprocess.run(
            [*start, *words[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=env,
            input=stdin,
            timeout=600,
        )
        wanted = 0 if written and command == "gradmend run train.py" else int(command in STOPS)
        assert done.returncode == wanted, f"{command}\n{done.stdout}\n{done.stderr}"
        written = written or "--write" in words


def test_python_blocks_are_python() -> None:
    for page in PAGES:
        for block in re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text(), re.M | re.S):
            if "--8<--" not in block and "%load_ext" not in block:
                compile(block, f"{page.name}", "exec")


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, *sorted((ROOT / "docs").glob("*/*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not target.startswith(("http", "#")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
