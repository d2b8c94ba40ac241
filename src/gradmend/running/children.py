"""`gradmend run` follows the processes that the program starts by multiprocessing: each has a scope and a Session of
its own, written to one folder, and the run's report holds them all.

A process object takes what to do with it into the child, whichever way that is started (spawn, fork, forkserver): so
workers of a DataLoader, torch.multiprocessing and process pools are followed alike. A plain os.fork() keeps the
parent's scope, and a subprocess is another program: neither is in the report, and the run says so at its end.
"""

from __future__ import annotations

import json
import multiprocessing.process as processes
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gradmend.model import Session
from gradmend.own_imports import own_imports

_Process: Any = processes.BaseProcess
FORKED = "a child of os.fork() is watched, but what it meets is not in the report; a child of multiprocessing is in it"


@dataclass(frozen=True, slots=True)
class Orders:
    """What a child needs to know."""

    folder: str
    policy: str
    paranoid: bool
    budget: int | None
    retain: bool = False


class Followed:
    """Stands for a process's run(). Pickled with it, it runs the real one under a scope, in the child."""

    def __init__(self, process: Any, orders: Orders) -> None:
        self.process = process
        self.orders = orders

    def __call__(self) -> None:
        process, orders = self.process, self.orders
        del process.__dict__["run"]
        run: Callable[[], None] = process.run
        from gradmend.api.watching import Watching

        policy: Any = orders.policy
        watching = Watching(policy, orders.budget, orders.paranoid, orders.retain, aloud=False)
        session = watching.__enter__()
        _started.clear()  # a fork takes those of its parent along
        owner, plain_exit = os.getpid(), os._exit

        def leave(ended: bool = False) -> None:
            if os.getpid() == owner:
                with own_imports():
                    _leave(session, process.name, orders.folder, ended)

        def so_far() -> None:
            watching.count()
            leave()

        def last_words(code: int) -> None:
            watching.count()
            leave(ended=True)
            plain_exit(code)

        # A worker of a DataLoader hands its error on and waits, a pool's is ended by a signal: each conflict is left at once.
        watching.at_each(so_far)
        os._exit = last_words  # type: ignore[assignment]
        with following(orders):  # its own children too
            try:
                run()
            except BaseException as error:
                with own_imports():
                    _fail(session, error)
                raise
            finally:
                os._exit = plain_exit
                with own_imports():
                    watching.__exit__(None, None, None)
                leave(ended=True)


def _fail(session: Session, error: BaseException) -> None:
    from gradmend.errors import attached
    from gradmend.frames import leave_out_ours

    if isinstance(error, SystemExit):
        return
    session.error = {"type": type(error).__name__, "message": str(error), "file": None, "line": None}
    told = attached(error)
    if told is None:
        session.outcome = "failed"
    elif all(told is not c for c in session.conflicts):
        session.conflicts.append(told)
        session.outcome = "conflict"
    leave_out_ours(error)


def _leave(session: Session, name: str, folder: str, ended: bool) -> None:
    """A worker that nothing happened to leaves nothing but its name."""
    from gradmend.running.output import replace

    if os.path.isdir(folder):  # the run may have ended before its daemons
        path = os.path.join(folder, f"{os.getpid()}.json")
        account = {"name": name, "session": session.as_json(), "ended": ended, "lost": _lost(folder)}
        replace(path, json.dumps(account))


@contextmanager
def following(orders: Orders) -> Iterator[list[str]]:
    """Each process that is started from here on is followed. Yields what is not, in words."""
    start = _Process.start
    alone: list[str] = []

    def followed(process: Any) -> None:
        _make(orders.folder)
        if "run" not in process.__dict__:
            process.run = Followed(process, orders)
        _starting.append(process)
        try:
            start(process)
            _started.append(process)
        finally:
            _starting.pop()
            process.__dict__.pop("run", None)

    _Process.start = followed
    _listeners.append(alone)
    _listen()
    try:
        yield alone
    finally:
        _listeners.remove(alone)
        _Process.start = start


_starting: list[Any] = []  # processes that are being started by us
_started: list[Any] = []  # those that this process started
_listeners: list[list[str]] = []
_listening = False


def _listen() -> None:
    """An audit hook can't be taken off again: one for the process, deaf while nobody listens."""
    global _listening
    if not _listening:
        _listening = True
        sys.addaudithook(_heard)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if not _listeners or _starting:
        return
    if event == "os.fork":
        _listeners[-1].append(FORKED)
    elif event == "subprocess.Popen":
        words = args[1] if isinstance(args[1], list | tuple) else [args[1]]
        words = [os.fsdecode(w) if isinstance(w, str | bytes | os.PathLike) else "" for w in words]
        if words and os.path.basename(words[0]).startswith("python") and "_inductor" not in " ".join(words):
            _listeners[-1].append(
                f"not watched: `{' '.join(words[1:3])[:60]}`, a program of its own; start it by `gradmend run`"
            )


@contextmanager
def folder() -> Iterator[str]:
    """Where children leave their sessions; made when the first of them starts, gone when the run ends, by SIGTERM too."""
    path = os.path.join(tempfile.gettempdir(), f"gradmend-children-{secrets.token_hex(8)}")
    owner = os.getpid()

    def told_off(number: int, frame: object) -> None:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    _ends[path] = told_off
    try:
        yield path
    finally:
        if os.getpid() == owner:
            _ends.pop(path, None)
            if signal.getsignal(signal.SIGTERM) is told_off:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            shutil.rmtree(path, ignore_errors=True)


_ends: dict[str, Callable[[int, object], None]] = {}


def _make(path: str) -> None:
    if os.path.isdir(path):
        return
    os.mkdir(path, 0o700)
    alone = threading.current_thread() is threading.main_thread() and path in _ends
    if alone and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # the program's own handler is its own
        signal.signal(signal.SIGTERM, _ends[path])


def met(path: str) -> list[tuple[str, Session]]:
    """The sessions that children left, in the order of their names; without those that are still being written."""
    from gradmend.report.saved import from_json

    return [
        (f"{data['name']} (process {number})", from_json(data["session"]))
        for number, data in _accounts(path).items()
    ]


def lost(path: str) -> list[str]:
    """Those that ended before they could leave a whole account, by SIGKILL for example, and who was told so by children."""
    told = [name for data in _accounts(path).values() for name in data["lost"]]
    return list(dict.fromkeys([*_lost(path), *told]))


def _lost(path: str) -> list[str]:
    accounts = _accounts(path)
    found = []
    for process in _started:
        try:
            code, number = process.exitcode, process.pid
        except ValueError:  # closed by the program, so it had ended
            continue
        # The program itself ends daemons and pools by SIGTERM: what they met until then is left.
        if code in (None, -signal.SIGTERM) or accounts.get(str(number), {}).get("ended"):
            continue
        found.append(f"{process.name} (process {number}, exit code {code}) ended without an account")
    return found


def _accounts(path: str) -> dict[str, Any]:
    found = {}
    for name in sorted(os.listdir(path)) if os.path.isdir(path) else ():
        if name.endswith(".json"):
            with open(os.path.join(path, name), encoding="utf-8") as file:
                found[name.removesuffix(".json")] = json.load(file)
    return found
