"""`gradmend report SESSION.json`: tell a saved session again, or the sessions of several ranks as one."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Any

from gradmend.cli.program import writable
from gradmend.report.colour import coloured


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="tell a saved session again, without running anything",
        description="Tells again what `gradmend run --report OUT.json` found. Given the reports of several ranks "
        "(OUT.rank*.json), tells each conflict once and says which ranks agree.",
    )
    parser.add_argument("sessions", nargs="+", metavar="SESSION.json")
    parser.add_argument("--html", metavar="OUT.html", help="write it as one HTML page")
    parser.add_argument("--json", metavar="OUT.json", help="write the merged session as JSON")


def run(args: argparse.Namespace) -> int:
    from gradmend.report.ranks import merged, names_of
    from gradmend.report.saved import damaged, read

    writable(args.html, args.json)
    sessions = list(zip(names_of(args.sessions), map(read, args.sessions), strict=True))
    session = sessions[0][1] if len(sessions) == 1 else merged(sessions)
    # After the sessions are read: both load torch, and a bad name is told at once.
    from gradmend.api.watching import words_of
    from gradmend.running.output import write

    colour = coloured(sys.stdout)
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    with damaged(", ".join(args.sessions)):
        for conflict in session.conflicts:
            healed = session.outcome == "healed" and conflict.kind != "refused-but-right"
            print(words_of(conflict, colour=colour, width=width, healed=healed) + "\n")
        print(_summary(sessions, session))
        write(session, args.json, args.html)
    return 0


def _summary(sessions: list[tuple[str, Any]], session: Any) -> str:
    count = len(session.conflicts)
    found = f"{count} conflict{'s' if count != 1 else ''}" if count else "no conflict"
    if len(sessions) == 1:
        return f"gradmend: {session.outcome}, {found}"
    outcomes = ", ".join(f"{name} {one.outcome}" for name, one in sessions)
    what = "on {} ranks" if all(name.startswith("rank ") for name, _ in sessions) else "in {} sessions"
    return f"gradmend: {found} {what.format(len(sessions))} ({outcomes})"
