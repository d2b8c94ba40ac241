"""`gradmend dry-run MODULE:FACTORY`: the verdicts of watch() on fake tensors, for models of any size."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

from gradmend.cli.program import writable
from gradmend.errors import UsageError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "dry-run",
        help="check a model's step without data, compute or memory",
        description="Calls FACTORY on fake tensors. It returns a module and its inputs, (model, x, ...), or is a whole "
        "training step itself. MODULE is a module's name, or a path to a .py file. Exit code 1: conflicts were found, or "
        "the program asked for a value.",
    )
    parser.add_argument("target", metavar="MODULE:FACTORY")
    parser.add_argument("--report", metavar="OUT.json", help="write what was learned as JSON")
    parser.add_argument("--html", metavar="OUT.html", help="write what was learned as one HTML page")


def run(args: argparse.Namespace) -> int:
    writable(args.report, args.html)
    factory = _found(args.target)
    from gradmend.api.dry import NEEDS_VALUES, fake_mode, run_fake
    from gradmend.running import output
    from gradmend.running.about import about

    def step() -> Any:
        made = factory()
        if isinstance(made, (tuple, list)) and made and callable(made[0]):
            return made[0](*made[1:])
        if callable(made) or (isinstance(made, dict) and any(map(callable, made.values()))):
            idle.append(type(made).__name__)
        return made

    idle: list[str] = []  # what was made and never called
    session = run_fake(fake_mode(), step)
    if idle:
        raise UsageError(
            f"{args.target} returned a {idle[0]} and nothing ran: return (model, input, ...), or the loss of a step"
        )
    session.run = about(args.target, command=["gradmend", "dry-run", args.target])
    output.write(session, args.report, args.html)
    output.say(session)
    if session.error:
        where = f" at {session.error['file']}:{session.error['line']}" if session.error["file"] else ""
        print(f"gradmend: {session.error['message']}{where}", file=sys.stderr)
    count = len(session.conflicts)
    print(f"gradmend dry-run: {session.outcome}, {count} conflict{'s' * (count != 1)}")
    print("not decided without values: " + "; ".join(NEEDS_VALUES))
    return 0 if session.outcome == "clean" else 1


def _found(target: str) -> Any:
    name, colon, attribute = target.rpartition(":")
    if not colon or not name or not attribute:
        raise UsageError(f"{target} is not MODULE:FACTORY, for example train:make_step or train.py:make_step")
    folder, file = os.path.split(name)
    if file.endswith(".py"):
        sys.path.insert(0, os.path.abspath(folder or "."))
        name = file.removesuffix(".py")
    else:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f"can't import {name}: {error}") from None
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise UsageError(f"importing {name} failed: {type(error).__name__}: {first}") from None
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise UsageError(f"{name} has no function {attribute}")
    return factory
