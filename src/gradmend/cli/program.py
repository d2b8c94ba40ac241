"""The program that a command runs: its words, apart from the command's own options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from gradmend.errors import UsageError


def words_of(args: argparse.Namespace, command: str, own: Sequence[str]) -> list[str]:
    """SCRIPT or MODULE, then its arguments. An option of `command` among them is most likely meant for it: refused,
    unless the program knows it as well, or `--` stands before the script."""
    words: list[str] = args.module if args.module is not None else args.program
    if not words:
        raise UsageError(
            f"no program given: gradmend {command} SCRIPT [ARGS...], or gradmend {command} -m MODULE [ARGS...]"
        )
    if words[0] == "--" and len(words) > 1:
        return words[1:]
    if args.module is None and words[0].startswith("-"):
        raise UsageError(f"unknown option {words[0]}: options of gradmend come before the script")
    for word in words[1:]:
        if word == "--":  # the program's own: what follows is surely not ours
            break
        name = word.partition("=")[0]
        if name in own and name not in _text(words[0]):
            raise UsageError(
                f"{name} stands after {words[0]}, and would be given to it. For Gradmend, write it first: gradmend {command} "
                f"{name} ... {words[0]}; for the program, write gradmend {command} -- {words[0]} ... {name}"
            )
    return words


def _text(script: str) -> str:
    try:
        with open(script, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def writable(*outs: str | None, program: str | None = None) -> None:
    """Say before a long run that its report has nowhere to go, or would take the place of something else."""
    given = [out for out in outs if out]
    for out in given:
        folder = os.path.dirname(os.path.abspath(out))
        if not os.path.isdir(folder):
            raise UsageError(f"can't write {out}: there is no folder {folder}")
        if os.path.isdir(out):
            raise UsageError(f"can't write {out}: it is a folder")
        if program is not None and os.path.realpath(out) == os.path.realpath(program):
            raise UsageError(f"can't write {out}: it is the program")
    if len({os.path.realpath(out) for out in given}) < len(given):
        raise UsageError(f"can't write two reports to {given[0]}")
