"""One run of a user's program under the ledger: what it did, what was learned, how it ends."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradmend.errors import ConflictError, attached
from gradmend.integrations import torchrun
from gradmend.model import Conflict, Session
from gradmend.own_imports import own_imports
from gradmend.report.ranks import with_children
from gradmend.running import children, output
from gradmend.running.about import about
from gradmend.running.aloud import put
from gradmend.running.uncaught import exit_code, raised_by, show

if TYPE_CHECKING:
    from gradmend.api.watching import Watching
    from gradmend.capture.ledger.scopes import Policy


_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Options:
    target: str
    args: tuple[str, ...] = ()
    module: bool = False
    heal: bool = False
    report: str | None = None
    html: str | None = None
    paranoid: bool = False
    budget: int | None = None
    retain: bool = False

    def command(self) -> list[str]:
        """As one would type it."""
        words = ["gradmend", "run", *["--heal"] * self.heal, *["--retain"] * self.retain]
        words += ["--paranoid"] * self.paranoid
        return [*words, *["-m"] * self.module, self.target, *self.args]


def run_program(options: Options, go: Callable[[], None]) -> int:
    """Run it by `go`; the exit code is the program's own, 1 when a conflict stopped it."""
    from gradmend.api.watching import Watching

    policy: Policy = "heal" if options.heal else "watch"
    watching = Watching(policy, options.budget, options.paranoid, options.retain, aloud=False)
    owner = os.getpid()
    with children.folder() as folder:
        orders = children.Orders(folder, policy, options.paranoid, options.budget, options.retain)
        session = watching.__enter__()
        session.run = about(options.target, options.args, options.command())

        def finish() -> None:
            if os.getpid() == owner:  # a forked child has nothing to report of its parent
                watching.count()
                with own_imports():
                    whole = with_children(session, children.met(folder))
                    if lost := children.lost(folder):
                        whole.stats["not told"] = lost
                    output.write(whole, torchrun.own_path(options.report), torchrun.own_path(options.html))

        def cut_off() -> None:
            if session.outcome == "clean":
                session.outcome = "failed"
                session.error = {
                    "type": "SIGTERM",
                    "message": "the launcher ended this rank",
                    "file": None,
                    "line": None,
                }
            finish()

        def cut_short() -> None:
            finish()
            if os.getpid() == owner:
                with own_imports():
                    output.say(session, heals=options.heal)

        with torchrun.last_words(cut_off), children.following(orders) as alone:
            end = _run(go, watching, session, cut_short)
            finish()
            with own_imports():
                output.say(session, stopped_by=end.stopped_by, heals=options.heal)
        if os.getpid() == owner:
            with own_imports():
                output.say_of_children(children.met(folder), alone, _shown(options.report or options.html))
                for child in children.lost(folder):
                    put(f"gradmend: not told: {child}")
                if end == End(0):
                    _say_if_idle(options)
    return end.leave()


def _shown(report: str | None) -> str | None:
    from gradmend.report.terminal import short

    path = torchrun.own_path(report)
    return short(path) if path else None


def _say_if_idle(options: Options) -> None:
    from gradmend.capture.graph.calls import history

    if not history and not options.module and os.path.basename(options.target).startswith("test_"):
        put(
            f"gradmend: no backward() ran: a test file runs under pytest, gradmend run -m pytest {options.target}"
        )


def _run(go: Callable[[], None], watching: Watching, session: Session, cut_short: Callable[[], None]) -> End:
    plain_exit = os._exit

    def last_words(code: int) -> None:
        cut_short()
        plain_exit(code)

    os._exit = last_words  # type: ignore[assignment]
    try:
        return ended(raised_by(go), session)
    finally:
        os._exit = plain_exit
        with own_imports():
            watching.__exit__(None, None, None)


@dataclass(frozen=True, slots=True)
class End:
    """How the program ended."""

    code: int
    stopped_by: Conflict | None = None
    interrupted: bool = False

    def leave(self) -> int:
        """The exit code. An interrupted program ends by the signal, once all is written and cleared away."""
        if self.interrupted:
            _finish_python()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return self.code


def _finish_python() -> None:
    """What python does before it ends by the signal: threads are waited for, `atexit` runs, what was printed is written."""
    threads: Any = threading
    for step in (
        threads._shutdown,
        atexit._run_exitfuncs,
        *(_flush(file) for file in (sys.stdout, sys.stderr)),
    ):
        raised_by(step)


def _flush(file: Any) -> Callable[[], None]:
    """None where the program has closed it, or taken it away."""
    return lambda: file.flush()


def ended(raised: BaseException | None, session: Session) -> End:
    """Tells what ended the program as python would, and enters it in the session."""
    if raised is None:
        return End(0)
    if isinstance(raised, SystemExit):
        return End(exit_code(raised))
    told: Conflict | None = None
    try:
        with own_imports():
            if isinstance(raised, KeyboardInterrupt):
                _stopped(session, raised)
            else:
                told = _failed(session, raised)
    finally:  # the session knows before the program's hook runs, which may end the process
        left = show(raised)
    if left is not None:
        return End(left, told)
    if isinstance(raised, KeyboardInterrupt):
        return End(_INTERRUPTED, interrupted=True)
    return End(1, told)


def _stopped(session: Session, stop: KeyboardInterrupt) -> None:
    """What was not reached was not looked at: such a run is never clean."""
    if session.outcome == "clean":
        session.outcome = "failed"
    session.error = _facts(stop, "stopped from outside, before its end")


def _failed(session: Session, error: BaseException) -> Conflict | None:
    """The conflict behind it, where there is one."""
    session.error = _facts(error, str(error))
    told = _conflict_of(error)
    if told is None:
        session.outcome = "failed"
    elif all(told is not c for c in session.conflicts):
        if not isinstance(error, ConflictError):
            session.conflicts.insert(0, told)
        session.outcome = "conflict"
    return told


def _facts(error: BaseException, message: str) -> dict[str, Any]:
    from gradmend.story.failures.scene import error_facts

    return error_facts(error, message)


def _conflict_of(error: BaseException) -> Conflict | None:
    """The conflict behind an error: ours, or PyTorch's own words for one; also below `raise ... from`."""
    from gradmend.story.failures.diagnosing import diagnose

    seen: BaseException | None = error
    while seen is not None:
        told = attached(seen) or diagnose(seen)
        if told is not None:
            return told
        seen = seen.__cause__ or seen.__context__
    return None
