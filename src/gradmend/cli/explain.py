"""`gradmend explain`: a rule (GM101), or an error read from a file or from stdin."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from typing import Any

from gradmend.errors import UsageError
from gradmend.report.colour import coloured

_CODE = re.compile(r"GM\d+", re.IGNORECASE)
_MOST_BYTES = 4_000_000  # of a log: its end is what matters


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="say what a rule, or an error that PyTorch printed, means",
        description="Says what an error means: gradmend explain error.txt, python train.py 2>&1 | gradmend explain, "
        "or, with the code of a rule, gradmend explain GM101.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="GM101 | FILE",
        help="a rule's code, or a file with a traceback; stdin without it",
    )


def run(args: argparse.Namespace) -> int:
    if args.what and _CODE.fullmatch(args.what) and not os.path.exists(args.what):
        return _rule(args.what)
    text = _text(args.what)
    if not text.strip():
        raise UsageError("explain: there is no text to explain: give a file, or pipe an error into it")
    from gradmend.api.explaining import words
    from gradmend.story.failures.explain import from_text

    conflict = from_text(text)
    if conflict is None:
        raise UsageError(
            "explain: this text holds no error of autograd's that Gradmend knows; "
            "it reads tracebacks, error messages, and codes such as GM101"
        )
    width = shutil.get_terminal_size((100, 24)).columns
    colour = coloured(sys.stdout)
    print(words(conflict, colour=colour, width=min(width, 120)))
    return 0


def _rule(code: str) -> int:
    from gradmend import rules
    from gradmend.check.findings import UNCHECKED

    if code.upper() == UNCHECKED:
        from gradmend.check.words import UNCHECKED_TEXT

        print(UNCHECKED_TEXT, end="")
        return 0

    try:
        rule = rules.get(code)
    except KeyError as unknown:
        raise UsageError(f"explain: {unknown.args[0]}") from None
    print(rule.as_text(), end="")
    return 0


def _text(source: str | None) -> str:
    if source is None or source == "-":
        if sys.stdin is None:
            raise UsageError("explain: stdin is closed: give a rule (GM101) or a file")
        if source is None and sys.stdin.isatty():
            raise UsageError("explain: give a rule (GM101) or a file, or pipe an error into it")
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        with open(source, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _MOST_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(f"explain: can't read {source}: {error.strerror or error}") from None
