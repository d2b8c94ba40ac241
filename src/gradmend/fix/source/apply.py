"""Write proven edits: every file or none."""

from __future__ import annotations

from collections.abc import Mapping

from gradmend.errors import UsageError
from gradmend.fix.source.text import Text
from gradmend.rewriting import Changed, Rewrite


def apply(original: Mapping[str, Text], sources: Mapping[str, str]) -> None:
    ready: list[Rewrite] = []
    done: list[Rewrite] = []
    try:
        for file, text in sources.items():
            before = original[file]
            ready.append(Rewrite(file, before.encode(before.text), before.encode(text)))
        for one in ready:
            one.put()
            done.append(one)
    except BaseException as why:
        for one in done:
            one.take_back()
        for one in ready:
            one.drop()
        if isinstance(why, Changed):
            raise UsageError(
                f"{why} has changed since it was analysed: nothing was written, run fix again"
            ) from None
        if isinstance(why, OSError):
            raise UsageError(f"can't write {why.filename}: {why.strerror}: nothing was written") from None
        raise
