"""`gradmend server`: a language server on stdio, for editors."""

from __future__ import annotations

import argparse
from typing import Any

from gradmend.errors import UsageError


def add_parser(commands: Any) -> None:
    commands.add_parser(
        "server",
        help="a language server on stdio: findings as you type, quick fixes, what an op keeps",
        description="Speaks the Language Server Protocol on stdin and stdout. Needs pygls: pip install 'gradmend[server]'.",
    )


def run(args: argparse.Namespace) -> int:
    try:
        from gradmend.check.server import serve
    except ImportError as missing:
        raise UsageError(
            f"server: {missing.name or missing} is not installed: pip install 'gradmend[server]'"
        ) from None
    serve()
    return 0
