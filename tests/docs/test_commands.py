"""Commands in README and docs are run: each `$ line` of a console block, in a folder with the files of docs/samples."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradmend import rules
from gradmend.cli.main import build

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


SAID = re.compile(r"`((?:gradmend|make|python|pytest) [^`\n]+)`")
TEXTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def missing(command: str) -> list[str]:
    """What of a command that a sentence names is not there: a subcommand, an option, a target, a file, a rule."""
    program, first, *rest = re.sub(r"\[.*?\]|<.*|^python -m (?=pytest )", "", command).split()
    options = [word for word in (first, *rest) if word.startswith("--")]
    if program == "make":
        return [first] if f"\n{first}:" not in (ROOT / "Makefile").read_text() else []
    if program == "gradmend":
        known = build().format_help()
        if not first.startswith("--"):
            known = subparser(first).format_help() if f" {first} " in known else ""
        codes = [code for code in rest if re.fullmatch(r"GM\d+", code) and code not in rules.codes()]
        return codes + [option for option in options if option not in known] + ([] if known else [first])
    if program == "pytest" and first.startswith("--"):
        return [] if first in (ROOT / "docs" / "pytest.md").read_text() else [first]
    file = ROOT / first
    return [first] if not file.exists() else [o for o in options if o not in file.read_text()]


def subparser(name: str) -> argparse.ArgumentParser:
    actions = build()._subparsers._group_actions  # type: ignore[union-attr]
    return actions[0].choices[name]  # type: ignore[index, call-overload, return-value]


def test_what_a_sentence_names_is_there() -> None:
    said = {one: page for page in TEXTS for one in SAID.findall(page.read_text())}
    assert len(said) > 80
    assert not {f"{page.name}: {one}": gone for one, page in said.items() if (gone := missing(one))}


def test_what_is_not_there_is_found() -> None:
    for bad in (
        "gradmend mend",
        "gradmend run --hael",
        "gradmend explain GM999",
        "make tset",
        "python tools/no.py",
    ):
        assert missing(bad), bad


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
