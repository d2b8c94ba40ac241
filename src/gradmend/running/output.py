"""What a run leaves behind: the report files, and our words on stderr."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence

from gradmend.model import Conflict, Session
from gradmend.report.colour import coloured
from gradmend.report.counts import count
from gradmend.running.aloud import put

_MOST_STORIES = 5
_SECOND_BACKWARD = "GM131"


def write(session: Session, report: str | None, html: str | None) -> None:
    if report or html:
        from gradmend.story.advice import advised

        session = dataclasses.replace(session, conflicts=[advised(c) for c in session.conflicts])
    if report:
        replace(report, json.dumps(session.as_json(), indent=2) + "\n")
    if html:
        from gradmend.report.html import render

        replace(html, render(session.as_json()))


def replace(path: str, text: str) -> None:
    """Whole or not at all: a reader never sees half a report. A link stays one, a pipe or a device is written to."""
    try:
        known = os.stat(path)
    except OSError:
        mode = 0o666 & ~_umask()
    else:
        mode = stat.S_IMODE(known.st_mode)
        if not stat.S_ISREG(known.st_mode) or path.startswith(("/dev/", "/proc/")):
            with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            return
    path = os.path.realpath(path)
    handle, scratch = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".gradmend-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.chmod(scratch, mode)  # mkstemp makes it for its owner alone
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def say(session: Session, stopped_by: Conflict | None = None, heals: bool = False) -> None:
    """The stories on stderr, the one that stopped the program last and in full."""
    from gradmend.report.terminal import render
    from gradmend.story.telling import tell, together

    colour = coloured(sys.stderr)
    width = shutil.get_terminal_size((100, 24)).columns

    def show(conflict: Conflict, healed: bool = False) -> None:
        put("\n" + render(tell(conflict, healed, heals), colour=colour, width=width))

    rest = together([c for c in session.conflicts if c is not stopped_by])
    for conflict in rest[:_MOST_STORIES]:
        show(conflict, healed=session.outcome == "healed" and conflict.kind != "refused-but-right")
    if len(rest) > _MOST_STORIES:
        put(f"\n... and {len(rest) - _MOST_STORIES} more; --report OUT.json has them all")
    if stopped_by is not None:
        show(stopped_by)
    elif session.outcome == "healed":
        put(f"\ngradmend: {healed_words(session.conflicts)}")


def healed_words(conflicts: Sequence[Conflict]) -> str:
    """ "healed 3 overwritten values at 1 line, 48 bytes kept; 1 second backward() went through a kept graph"."""
    from gradmend.story.telling import together

    again = [c for c in conflicts if c.rule == _SECOND_BACKWARD]
    healed = [c for c in conflicts if c.kind != "refused-but-right" and c not in again]
    told = []
    if healed:
        kept, times = sum(c.healed_bytes for c in healed), sum(c.times for c in healed)
        places = count(len(together(healed)), "line")
        told.append(f"healed {count(times, 'overwritten value')} at {places}, {count(kept, 'byte')} kept")
    if again:
        told.append(
            f"{count(sum(c.times for c in again), 'second backward()')} went through a kept graph".replace(
                "()s", "() calls"
            )
        )
    return "; ".join(told)


def say_of_children(
    children: Sequence[tuple[str, Session]], alone: Sequence[str], report: str | None
) -> None:
    """A line for each process that met something, and one for those that could not be followed."""
    has_it = f"{report} has it" if report else "with --report OUT.json it is written down"
    for name, session in children[:_MOST_STORIES]:
        rules = ", ".join(dict.fromkeys(c.rule for c in session.conflicts))
        if rules:
            put(f"gradmend: {name}: {session.outcome}, {rules}; {has_it}")
    for what in dict.fromkeys(alone):
        put(f"gradmend: {what}")
