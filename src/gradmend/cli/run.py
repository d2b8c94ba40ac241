"""`gradmend run SCRIPT`: the program as `python SCRIPT` would run it, under the ledger."""

from __future__ import annotations

import argparse
import os
from importlib import import_module
from typing import Any

from gradmend.cli.program import words_of, writable
from gradmend.errors import UsageError

_OWN = ("--heal", "--audit", "--audit-calls", "--report", "--html", "--paranoid", "--budget", "--retain")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run a program and stop at the first conflict with its story",
        usage="gradmend run [--heal [--retain] | --audit [--audit-calls N]] [--report OUT.json] [--html OUT.html] [--paranoid] [--budget SIZE] "
        "(SCRIPT | -m MODULE) [ARGS...]",
        description="Runs the program as `python SCRIPT` would; its stdout stays its own, our words go to stderr.",
    )
    parser.add_argument(
        "--heal", action="store_true", help="run on with the right gradient instead of stopping"
    )
    parser.add_argument(
        "--audit", action="store_true", help="say whether the gradients that the program gets are right"
    )
    parser.add_argument(
        "--audit-calls",
        type=int,
        default=10,
        metavar="N",
        help="with --audit: backward calls to compare (10)",
    )
    parser.add_argument("--report", metavar="OUT.json", help="write what was learned as JSON")
    parser.add_argument("--html", metavar="OUT.html", help="write what was learned as one HTML page")
    parser.add_argument("--paranoid", action="store_true", help="fingerprint every saved tensor")
    parser.add_argument(
        "--budget",
        metavar="SIZE",
        nargs="?",
        const="",
        help="with --heal: keep at most this much, for example 512MB",
    )
    parser.add_argument(
        "--retain",
        action="store_true",
        help="with --heal: keep graphs, so that a second backward goes through what the first would have freed",
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="run a module")
    parser.add_argument(
        "program", metavar="SCRIPT", nargs=argparse.REMAINDER, help="the program and its arguments"
    )


def run(args: argparse.Namespace) -> int:
    if args.budget is not None and not (args.program or args.module) and not args.budget[:1].isdigit():
        raise UsageError(f"--budget takes a size, for example --budget 512MB {args.budget}".rstrip())
    words = words_of(args, "run", _OWN)
    writable(args.report, args.html, program=None if args.module else words[0])
    for option in ("budget", "retain"):
        if getattr(args, option) not in (None, False) and not args.heal:
            raise UsageError(f"--{option} goes with --heal")
    if args.audit and (args.heal or args.audit_calls < 1):
        raise UsageError("--audit goes without --heal, and --audit-calls needs 1 or more")
    from gradmend.running import launch

    # What can't run is told before torch loads; a script is compiled once, and warns once.
    go = launch.program(words[0], words[1:], args.module is not None)
    # Before any of ours that needs it: where GRADMEND=1 is set, it arms us as it loads.
    import_module("torch")
    from gradmend.capture.memory.budget import parse
    from gradmend.running.runner import Options, run_program

    options = Options(
        target=words[0],
        args=tuple(words[1:]),
        module=args.module is not None,
        heal=args.heal,
        report=args.report and os.path.abspath(args.report),  # the program may go to another folder
        html=args.html and os.path.abspath(args.html),
        paranoid=args.paranoid,
        budget=parse(args.budget),
        retain=args.retain,
    )
    if args.audit:
        from gradmend.running.audit import audit_program

        return audit_program(options, go, args.audit_calls)
    return run_program(options, go)
