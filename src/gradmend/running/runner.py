"""One run of a user's program under the ledger: what it did, what was learned, how it ends."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING

from gradmend.errors import ConflictError, attached, pytorch_says
from gradmend.folder import is_ours
from gradmend.integrations import torchrun
from gradmend.model import Conflict, Session
from gradmend.report.ranks import with_children
from gradmend.running import children, launch, output
from gradmend.running.about import about

if TYPE_CHECKING:
    from gradmend.api.watching import Watching


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


def run_program(options: Options) -> int:
    """Run it; the exit code is the program's own, 1 when a conflict stopped it."""
    go = (launch.module if options.module else launch.script)(options.target, options.args)
    from gradmend.api.watching import Watching

    watching = Watching(
        "heal" if options.heal else "watch", options.budget, options.paranoid, options.retain, aloud=False
    )
    owner = os.getpid()
    orders = children.Orders(
        "", "heal" if options.heal else "watch", options.paranoid, options.budget, options.retain
    )
    with children.folder() as folder:
        session = watching.__enter__()
        session.run = about(options.target, options.args, options.command())

        def finish() -> None:
            if os.getpid() == owner:  # a forked child has nothing to report of its parent
                whole = with_children(session, children.met(folder))
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

        def went() -> None:
            from gradmend.capture.graph.calls import history

            go()
            name = os.path.basename(options.target)
            if not history and not options.module and name.startswith("test_"):
                print(
                    f"gradmend: no backward() ran: a test file runs under pytest, gradmend run -m pytest {options.target}",
                    file=sys.stderr,
                )

        with torchrun.last_words(cut_off), children.following(replace(orders, folder=folder)) as alone:
            code = _run(went, watching, session, finish, options.heal)
        output.say_of_children(children.met(folder), alone)
    if (
        code == _INTERRUPTED
    ):  # our own end is that of the program: by the signal, once all is written and cleared away
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(owner, signal.SIGINT)
    return code


def _run(
    go: Callable[[], None], watching: Watching, session: Session, finish: Callable[[], None], heals: bool
) -> int:
    plain_exit = os._exit

    def last_words(code: int) -> None:
        finish()
        plain_exit(code)

    os._exit = last_words  # type: ignore[assignment]
    try:
        go()
    except SystemExit as leaving:
        _end(session, finish, heals)
        return _exit_code(leaving)
    except KeyboardInterrupt as stop:
        _print_traceback(stop)
        _stopped(session, stop)
        _end(session, finish, heals)
        return _INTERRUPTED
    except BaseException as error:
        return _failed(error, session, finish, heals)
    finally:
        os._exit = plain_exit
        watching.__exit__(None, None, None)
    _end(session, finish, heals)
    return 0


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    print(leaving.code, file=sys.stderr)
    return 1


def _stopped(session: Session, stop: KeyboardInterrupt) -> None:
    """What was not reached was not looked at: such a run is never clean."""
    frame = _user_line(stop.__traceback__) or (None, None)
    if session.outcome == "clean":
        session.outcome = "failed"
    words = "stopped from outside, before its end"
    session.error = {"type": "KeyboardInterrupt", "message": words, "file": frame[0], "line": frame[1]}


def _end(session: Session, finish: Callable[[], None], heals: bool = False) -> None:
    finish()
    output.say(session, heals=heals)


def _failed(error: BaseException, session: Session, finish: Callable[[], None], heals: bool = False) -> int:
    _print_traceback(error)
    told = _conflict_of(error)
    if told is not None and all(told is not c for c in session.conflicts):
        if not isinstance(error, ConflictError):
            session.conflicts.insert(0, told)
        session.outcome = "conflict"
    elif told is None:
        session.outcome = "failed"
    frame = _user_line(error.__traceback__)
    session.error = {
        "type": type(error).__name__,
        "message": str(error),
        "file": frame[0] if frame else None,
        "line": frame[1] if frame else None,
    }
    finish()
    output.say(session, stopped_by=told, heals=heals)
    return 1


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


def _user_line(trace: TracebackType | None) -> tuple[str, int] | None:
    from gradmend.capture.sites import is_user

    last = None
    while trace is not None:
        if is_user(trace.tb_frame.f_code):
            last = (os.path.abspath(trace.tb_frame.f_code.co_filename), trace.tb_lineno)
        trace = trace.tb_next
    return last


def _print_traceback(error: BaseException) -> None:
    """As the interpreter would print it, without the frames that are ours."""
    summary = traceback.TracebackException.from_exception(error)
    _leave_out_ours(summary, set())
    lines = list(summary.format())
    if attached(error) is not None and error.__cause__ is None and error.__context__ is None:
        # The story follows in full; the traceback only says how the program got there.
        words = str(error)
        if isinstance(error, ConflictError):
            words = pytorch_says(error.conflict) or "the story follows"
        lines = ["Traceback (most recent call last):\n", *summary.stack.format()]
        lines.append(f"{type(error).__name__}: {words}\n")
    print("".join(lines), end="", file=sys.stderr)


def _leave_out_ours(summary: traceback.TracebackException | None, seen: set[int]) -> None:
    if summary is None or id(summary) in seen:
        return
    seen.add(id(summary))
    summary.stack[:] = [frame for frame in summary.stack if not is_ours(frame.filename)]
    for inner in (summary.__cause__, summary.__context__, *(summary.exceptions or ())):
        _leave_out_ours(inner, seen)
