"""`gradmend demo`: broken programs, PyTorch's own words, then the story, then the healed run."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from importlib.resources import files
from typing import Any

_PROGRAMS = ("residual_block", "two_optimizers", "disjoint_rows", "index_buffer")
_WIDTH = 88


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("demo", help="broken programs: what PyTorch says, then what Gradmend says")
    parser.add_argument("name", nargs="?", choices=_PROGRAMS, help="only this one")


def run(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="gradmend-demo-") as folder:
        for name in [args.name] if args.name else _PROGRAMS:
            # As the user's own file: lines inside the package would count as ours.
            path = os.path.join(folder, f"{name}.py")
            with open(path, "wb") as file:
                file.write(files("gradmend.demo_programs").joinpath(f"{name}.py").read_bytes())
            _show(path)
    return 0


def _show(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        source = file.read().rstrip()
    print(f"{'=' * _WIDTH}\n{source.splitlines()[0].lstrip('# ')}\n{'-' * _WIDTH}")
    for number, line in enumerate(source.splitlines()[1:], start=2):
        print(f"{number:4} {line}")
    plain = _python([path])
    name = os.path.basename(path)
    print(f"\n--- python {name}\n{_last_words(plain)}", flush=True)
    watched = _python(["-m", "gradmend", "run", path])
    print(f"\n--- gradmend run {name}\n{_story(watched.stderr)}", flush=True)
    healed = _python(["-m", "gradmend", "run", "--heal", path])
    print(f"\n--- gradmend run --heal {name}")
    if healed.returncode == 0:
        print(healed.stdout.strip(), *re.findall(r"^gradmend: .*", healed.stderr, re.M), sep="\n")
    else:
        print("stops with the same story: what numpy overwrote can't be brought back")
    print(flush=True)


def _python(words: list[str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", "GRADMEND": "0", "COLUMNS": str(_WIDTH)}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False)


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """What a person sees last: the error, or the program's own output."""
    lines = done.stderr.strip().splitlines()
    if done.returncode and lines:
        return "\n".join(line for line in lines if line.startswith("RuntimeError")) or lines[-1]
    return done.stdout.strip()


def _story(text: str) -> str:
    at = max(text.find("\nerror["), text.find("\nwarning["))
    return text[at:].strip() if at >= 0 else ""
