"""`gradmend fix SCRIPT`: find the conflict, edit the source, prove the edit, and show or write it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradmend.cli.program import words_of, writable
from gradmend.errors import UsageError
from gradmend.report.colour import coloured

_OWN = ("--write", "--steps", "--report", "--unsafe", "--time-limit", "--allow-processes", "--allow-network")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "fix",
        help="edit the source so that plain PyTorch computes the right gradient, and prove it",
        usage="gradmend fix [--write] [--steps N] [--report OUT.json] [--html OUT.html] [--unsafe] [--time-limit S] [--allow-processes] "
        "[--allow-network] (SCRIPT | -m MODULE) [ARGS...]",
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
        "--time-limit",
        type=float,
        default=60,
        metavar="S",
        help="seconds for each trial run (60; more where the program itself takes long)",
    )
    parser.add_argument(
        "--allow-processes",
        action="store_true",
        help="let trials start processes where the kernel can't confine them",
    )
    parser.add_argument("--allow-network", action="store_true", help="let trials open connections")
    parser.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="fix a module")
    parser.add_argument(
        "program", metavar="SCRIPT", nargs=argparse.REMAINDER, help="the program and its arguments"
    )


def run(args: argparse.Namespace) -> int:
    target, *argv = words_of(args, "fix", _OWN)
    if find_spec("libcst") is None:
        raise UsageError("fix: libcst is not installed: pip install 'gradmend[fix]'")
    if args.steps < 1:
        raise UsageError("--steps must be at least 1")
    from gradmend.running.launch import refuse_notebook

    refuse_notebook(target)
    module, script = (target, "") if args.module is not None else (None, target)
    if module is not None:
        module, script = _file_of(module)
    if os.path.isdir(script):
        script = os.path.join(script, "__main__.py")
    if not os.path.isfile(script):
        raise UsageError(f"can't read {script}: no such file")
    if zipfile.is_zipfile(script):
        raise UsageError(f"{script} is a zip file: fix edits sources, unpack it first")
    writable(args.report, args.html)
    _readable(script)
    from gradmend.fix.session import fix

    allow = {name for name in ("processes", "network") if getattr(args, f"allow_{name}")}
    try:
        outcome = fix(
            Path(script),
            argv,
            steps=args.steps,
            seconds=args.time_limit,
            write=args.write,
            unsafe=args.unsafe,
            colour=coloured(sys.stdout),
            module=module,
            allow=frozenset(allow),
        )
    except KeyboardInterrupt:
        print("gradmend: stopped; nothing was changed", file=sys.stderr)
        return 130
    if args.report or args.html:
        _leave(outcome.report, args, target, argv)
    return outcome.code


def _leave(report: dict[str, Any], args: argparse.Namespace, target: str, argv: list[str]) -> None:
    from gradmend.running.about import about
    from gradmend.running.output import replace

    module = [] if args.module is None else ["-m"]
    report["run"] = about(target, argv, ["gradmend", "fix", *module, target, *argv])
    if args.report:
        replace(args.report, json.dumps(report, indent=2) + "\n")
    if args.html:
        from gradmend.report.html import render

        replace(args.html, render(report))


def _file_of(name: str) -> tuple[str, str]:
    """The module that `python -m` would run, and its file: of a package, its __main__."""
    import importlib.util

    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(name)
        if found is not None and found.submodule_search_locations is not None:
            name = f"{name}.__main__"
            found = importlib.util.find_spec(name)
    except (ImportError, ValueError) as why:
        raise UsageError(f"can't find the module {name}: {why}") from None
    finally:
        sys.path.pop(0)
    if found is None or not found.origin or not found.origin.endswith(".py"):
        raise UsageError(f"no module named {name} with a source file")
    return name, found.origin


def _readable(script: str) -> None:
    from gradmend.fix.source.text import read

    text = read(script)
    try:
        compile(text.text, script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as why:
        line = getattr(why, "lineno", None)
        raise UsageError(
            f"{script}{f', line {line}' if line else ''}: {why.args[0]}: Python can't run it either"
        ) from None
