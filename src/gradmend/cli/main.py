"""The command line: `gradmend run|fix|check|server|explain|saves|report|demo|doctor`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from gradmend.cli import output
from gradmend.errors import UsageError
from gradmend.folder import launched_by

# Each has add_parser(subparsers) and run(args) -> exit code; only the one that is asked for runs.
_COMMANDS = ("run", "fix", "check", "server", "explain", "saves", "report", "dry-run", "demo", "doctor")
_PROGRAMS = (
    "run",
    "fix",
    "dry-run",
    "server",
)  # stdout, and what goes wrong with it, is the program's or the client's


class _Version(argparse.Action):
    """What it says needs modules that no other command does before its own: they load when it is asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from gradmend import __version__
        from gradmend.capture.native.loading import form

        print(f"gradmend {__version__} ({form()})")
        parser.exit()


def build(only: str | None = None) -> argparse.ArgumentParser:
    """The parser; with `only`, of that command alone: the others' modules need not load for it."""
    parser = argparse.ArgumentParser(
        prog="gradmend",
        description="Find, heal and fix what breaks PyTorch's gradients.",
        epilog="`gradmend COMMAND --help` tells more of each.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show the version, and whether it is compiled"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in (only,) if only in _COMMANDS else _COMMANDS:
        import_module(f"gradmend.cli.{name.replace('-', '_')}").add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    launched_by(sys._getframe(1).f_code.co_filename)
    name = words[0] if words else None
    try:
        if name in _PROGRAMS:
            return _run(words, name)
        with output.told():
            return _run(words, name)
    except UsageError as bad:
        print(f"gradmend: {bad}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `gradmend saves exp | head`
        sys.stderr.close()
        return 1


def _run(words: list[str], name: str | None) -> int:
    args = build(name).parse_args(words)
    command = import_module(f"gradmend.cli.{args.command.replace('-', '_')}")
    return int(command.run(args))


if __name__ == "__main__":
    sys.exit(main())
