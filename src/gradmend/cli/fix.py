"""`gradmend fix SCRIPT`: find the conflict, edit the source, prove the edit, and show or write it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradmend.errors import UsageError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "fix",
        help="edit the source so that plain PyTorch computes the right gradient, and prove it",
        usage="gradmend fix [--write] [--steps N] [--report OUT.json] [--html OUT.html] [--unsafe] [--time-limit S] SCRIPT [ARGS...]",
        description="Runs the program in scratch copies, tries edits, and accepts one whose losses and gradients equal "
        "those that the original meant. Prints the diff and its proof; --write applies it.",
    )
    parser.add_argument("--write", action="store_true", help="apply the proven edit to the files")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="backward calls to compare (50)")
    parser.add_argument("--report", metavar="OUT.json", help="write what was learned as JSON")
    parser.add_argument("--html", metavar="OUT.html", help="write what was learned as one HTML page")
    parser.add_argument(
        "--unsafe", action="store_true", help="also offer (and with --write apply) an unproven edit"
    )
    parser.add_argument(
        "--time-limit", type=float, default=60, metavar="S", help="seconds for each trial run (60)"
    )
    parser.add_argument(
        "program", metavar="SCRIPT", nargs=argparse.REMAINDER, help="the program and its arguments"
    )


def run(args: argparse.Namespace) -> int:
    if not args.program:
        raise UsageError("no program given: gradmend fix SCRIPT [ARGS...]")
    if find_spec("libcst") is None:
        raise UsageError("fix: libcst is not installed: pip install 'gradmend[fix]'")
    script, *argv = args.program
    if script.startswith("-"):
        raise UsageError(f"unknown option {script}: options of gradmend come before the script")
    if args.steps < 1:
        raise UsageError("--steps must be at least 1")
    from gradmend.running.launch import refuse_notebook

    refuse_notebook(script)
    if not os.path.isfile(script):
        raise UsageError(f"can't read {script}: no such file")
    for out in (args.report, args.html):
        folder = os.path.dirname(os.path.abspath(out)) if out else None
        if folder and not os.path.isdir(folder):
            raise UsageError(f"can't write {out}: there is no folder {folder}")
    _readable(script)
    from gradmend.fix.session import fix

    try:
        outcome = fix(
            Path(script),
            argv,
            steps=args.steps,
            seconds=args.time_limit,
            write=args.write,
            unsafe=args.unsafe,
            colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        )
    except KeyboardInterrupt:
        print("gradmend: stopped; nothing was changed", file=sys.stderr)
        return 130
    if args.report or args.html:
        _leave(outcome.report, args)
    return outcome.code


def _leave(report: dict[str, Any], args: argparse.Namespace) -> None:
    from gradmend.running.about import about
    from gradmend.running.output import replace

    script, *argv = args.program
    report["run"] = about(script, argv, ["gradmend", "fix", script, *argv])
    if args.report:
        replace(args.report, json.dumps(report, indent=2) + "\n")
    if args.html:
        from gradmend.report.html import render

        replace(args.html, render(report))


def _readable(script: str) -> None:
    from gradmend.fix.text import read

    text = read(script)
    try:
        compile(text.text, script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as why:
        line = getattr(why, "lineno", None)
        raise UsageError(
            f"{script}{f', line {line}' if line else ''}: {why.args[0]}: Python can't run it either"
        ) from None
