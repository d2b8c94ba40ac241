"""Many files: from the cache, or on all cores; findings are gathered, told once, and sifted by the settings."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from gradmend.check.cache import Cache
from gradmend.check.callers import Definition, callers_in
from gradmend.check.files import Result, check_file
from gradmend.check.findings import Finding
from gradmend.check.project import look_again
from gradmend.check.settings import Nearest, Settings

_FEW = 24  # files that are not worth starting processes for
_BYTES = 400_000


@dataclass
class Outcome:
    findings: list[Finding] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    cached: int = 0
    stopped: list[str] = field(default_factory=list)  # files that were not followed to their end
    prints: dict[str, str] = field(default_factory=dict)  # of what was checked, by file


def check(
    files: list[str],
    settings: Settings | Nearest,
    *,
    jobs: int | None = None,
    cache: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    look_again()
    store = Cache(cache)
    outcome = Outcome(files=len(files))
    found: dict[tuple[str, int | None, str, int, int], Finding] = {}
    asked = set(files)
    todo: list[str] = []

    def take(result: Result) -> None:
        outcome.lines += result.lines
        outcome.stopped += [result.file] * result.stopped
        outcome.prints[result.file] = result.depends.get(result.file, "")
        if result.unreadable:
            outcome.unreadable.append((result.file, result.unreadable))
        for finding in result.findings:
            where = finding.place
            if not finding.told_in(asked) or not settings.wants(finding.rule, where.file):
                continue
            key = (where.file, where.cell, finding.rule, where.line, where.column)
            there = found.get(key)
            if there is None or (there.severity, there.tried) > (finding.severity, finding.tried):
                found[key] = finding

    for file in files:
        known = store.get(file) if cache else None
        if known is None:
            todo.append(file)
        else:
            outcome.cached += 1
            take(known)
    for done, result in enumerate(_results(todo, jobs), start=1):
        store.put(result)
        take(result)
        if progress is not None:
            progress(done + outcome.cached, len(files))
    store.close()
    outcome.stopped.sort()
    told = without_echoes(judged_by_callers(list(found.values()), files))
    outcome.findings = sorted(told, key=lambda f: f.order)
    return outcome


def judged_by_callers(findings: list[Finding], files: list[str]) -> Iterator[Finding]:
    """Without those that rest on grad mode, where all that calls the function in these files is under no_grad."""
    tried = {f: _tried(f) for f in findings if f.tried}
    known = callers_in(files, tried.values())
    return (f for f in findings if f not in tried or not known.never_in_grad_mode(tried[f]))


def _tried(finding: Finding) -> Definition:
    """The function that was tried on its own: it stands in the file that was checked."""
    owner, _, name = finding.tried.rpartition(".")
    return Definition((finding.via or finding).place.file, owner, name)


def without_echoes(findings: Iterable[Finding]) -> Iterator[Finding]:
    """One finding a place: where two rules speak of one write, the surer of them does."""
    best: dict[tuple[str, int | None, int, int], Finding] = {}
    for finding in findings:
        key = (finding.place.file, finding.place.cell, finding.place.line, finding.place.column)
        there = best.get(key)
        if there is None or (there.severity, there.rule) > (finding.severity, finding.rule):
            best[key] = finding
    return iter(best.values())


def _results(files: list[str], jobs: int | None) -> Iterator[Result]:
    jobs = jobs or _cores()
    if jobs < 2 or len(files) < 2 or (len(files) < _FEW and sum(map(_size, files)) < _BYTES):
        yield from map(_one, files)
        return
    from concurrent.futures import ProcessPoolExecutor

    # The largest first, so that no core waits for one of them at the end.
    order = sorted(files, key=_size, reverse=True)
    chunk = max(1, min(16, len(order) // (jobs * 8)))
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_one, order, chunksize=chunk)


_done = 0


def _one(file: str) -> Result:
    global _done
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 6000))
    # Trees are many objects and no garbage: collecting at every turn took most of the time.
    gc.disable()
    _done += 1
    if _done % 64 == 0:
        gc.collect()
    try:
        return check_file(file)
    except Exception as error:  # a mistake of ours in one file must not cost the others
        if os.environ.get("GRADMEND_DEBUG"):
            raise
        return Result(
            file, unreadable=f"gradmend failed on it ({type(error).__name__}: {error}); please report this"
        )


def _size(file: str) -> int:
    try:
        return os.path.getsize(file)
    except OSError:
        return 0


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def teller(stream: object = None) -> Callable[[int, int], None]:
    """Progress on stderr, where a person looks at it and the run takes longer than a second."""
    started, shown = time.monotonic(), [0.0]

    def progress(done: int, total: int) -> None:
        now = time.monotonic()
        if now - started > 1 and (now - shown[0] > 0.2 or done == total):
            shown[0] = now
            end = "\r" + " " * 40 + "\r" if done == total else ""
            print(f"\rgradmend: {done} of {total} files{end}", end="", file=sys.stderr, flush=True)

    return progress
