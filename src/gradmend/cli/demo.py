"""`gradmend demo`: five short scenes: a diagnosis, a silent one, the healed run, the proven fix, sparse training."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from gradmend.cli.program import writable


class Scene(NamedTuple):
    title: str
    program: str
    commands: tuple[str, ...]  # python: PyTorch alone


_SCENES = {
    "diagnosis": Scene("An in-place error, and the line that caused it", "residual_block", ("python", "run")),
    "silent": Scene("No error at all, and a wrong gradient", "index_buffer", ("python", "run")),
    "heal": Scene(
        "The first program again, run on with the right gradient", "residual_block", ("run --heal",)
    ),
    "fix": Scene("The source mended, and the mending proven", "residual_block", ("fix",)),
    "sparse": Scene("Sparse training beside torch.sparse", "sparse_training", ("python",)),
}
_MOST_WIDE = 100


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("demo", help="five short scenes; ends with the path of an HTML report")
    parser.add_argument("name", nargs="?", choices=_SCENES, help="only this one")
    parser.add_argument(
        "--html", metavar="OUT.html", help="where the report goes (a folder for temporary files)"
    )


def run(args: argparse.Namespace) -> int:
    writable(args.html)
    stage = _Stage()
    folder = Path(tempfile.gettempdir(), f"gradmend-demo-{os.getpid()}")
    folder.mkdir(exist_ok=True)
    page = Path(args.html).absolute() if args.html else folder / "report.html"
    shown: set[str] = set()
    names = [args.name] if args.name else list(_SCENES)
    for number, name in enumerate(names, 1):
        scene = _SCENES[name]
        stage.title(f"{number}/{len(names)}  {scene.title}")
        # As the user's own file: lines inside the package would count as ours.
        path = folder / f"{scene.program}.py"
        path.write_bytes(files("gradmend.demo_programs").joinpath(path.name).read_bytes())
        if scene.program not in shown:
            stage.source(path.read_text(encoding="utf-8"))
            shown.add(scene.program)
        for command in scene.commands:
            _play(stage, command, path, page)
    if page.exists():
        print(f"\nA report to open in a browser: {page}")
    return 0


def _play(stage: _Stage, command: str, path: Path, page: Path) -> None:
    stage.command(f"{'' if command == 'python' else 'gradmend '}{command} {path.name}")
    if command == "python":
        print(_last_words(stage.run([path.name], path.parent)))
        return
    if command == "fix" and find_spec("libcst") is None:
        print("libcst is not installed: pip install 'gradmend[fix]'")
        return
    words = [*command.split(), *["--html", str(page)] * (command == "fix"), path.name]
    done = stage.run(["-m", "gradmend", *words], path.parent)
    if command == "run":
        print(_story(done.stderr))
    elif command == "fix":
        stage.diff("\n".join(line for line in done.stdout.splitlines() if not line.startswith("rejected: ")))
    else:
        print(done.stdout.strip(), *re.findall(r"^gradmend: .*", done.stderr, re.M), sep="\n")


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """What a person sees last: the error, or the program's own output."""
    lines = done.stderr.strip().splitlines()
    if done.returncode and lines:
        return "\n".join(line for line in lines if line.startswith("RuntimeError")) or lines[-1]
    return done.stdout.strip()


def _story(text: str) -> str:
    found = re.search(r"(?:\x1b\[[\d;]*m)?(?:error|warning)\[", text)
    return text[found.start() :].strip() if found else text.strip()


class _Stage:
    """Where it is shown: in colour on a terminal, as plain text elsewhere."""

    def __init__(self) -> None:
        self.colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self.rich = self.colour and find_spec("rich") is not None
        self.width = min(_MOST_WIDE, shutil.get_terminal_size((_MOST_WIDE, 24)).columns)

    def title(self, words: str) -> None:
        line = "━" * self.width
        print(
            f"\n{self._paint(line, '36')}\n{self._paint(words, '1')}\n{self._paint(line, '36')}", flush=True
        )

    def command(self, words: str) -> None:
        print(f"\n{self._paint('$ ' + words, '1;32')}", flush=True)

    def source(self, text: str) -> None:
        about, _, rest = text.partition("\n")
        print(about.lstrip("# "))
        if self.rich:
            from rich.console import Console
            from rich.syntax import Syntax

            Console(width=self.width).print(
                Syntax(
                    rest.strip("\n"), "python", line_numbers=True, start_line=2, background_color="default"
                )
            )
        else:
            for number, line in enumerate(rest.rstrip().splitlines(), 2):
                print(f"{number:4} {line}".rstrip())
        sys.stdout.flush()

    def diff(self, text: str) -> None:
        for line in text.splitlines():
            head = line.startswith(("--- ", "+++ ", "@@"))
            print(self._paint(line, "2" if head else {"+": "32", "-": "31"}.get(line[:1], "0")))
        sys.stdout.flush()

    def run(self, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "GRADMEND": "0", "COLUMNS": str(self.width), "PYTHONWARNINGS": "ignore"}
        env["NO_COLOR"] = "1"
        done = subprocess.run(
            [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        if self.colour and words[0] == "-m" and words[2] == "run":
            done.stderr = _coloured(done.stderr)
        return done

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text


def _coloured(story: str) -> str:
    """The story as the terminal would have it: it was told to a pipe."""
    rows = []
    for line in story.splitlines():
        line = re.sub(r"^(error|warning)(\[\w+\])", "\x1b[1;31m\\1\\2\x1b[0m", line)
        line = re.sub(r"^(\s*\d* [|=])", "\x1b[1;34m\\1\x1b[0m", line)
        line = re.sub(r"(\^+ .*)$", "\x1b[1;31m\\1\x1b[0m", line)
        rows.append(re.sub(r"( -{3,} .*)$", "\x1b[1;34m\\1\x1b[0m", line))
    return "\n".join(rows)
