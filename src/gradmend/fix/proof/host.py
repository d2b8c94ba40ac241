"""A process that has imported torch once and forks a child for each trial run.

Importing torch takes longer than most trials; forking before any tensor work is safe and quick.
Requests are JSON lines on stdin; the answer to each is a JSON line on stdout.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from typing import Any


def main() -> None:
    import torch  # noqa: F401  (imported for the children)

    from gradmend.fix.proof import child, copies, memory, record, slopes  # noqa: F401

    for name in sys.argv[1:]:
        importlib.import_module(name)
    out = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        answer = _serve(request)
        out.write(json.dumps(answer) + "\n")
        out.flush()


_running: list[int] = []
# What SIGINT did when this process started: a trial has it as python would, also under nohup.
_interrupt: Any = signal.default_int_handler


def _stop(*_: object) -> None:
    """Asked to end: no trial outlives its host."""
    for pid in _running:
        _kill(pid)
    os._exit(0)


def _kill(pid: int) -> None:
    for target in (-pid, pid):  # the group first: it may outlive the child itself
        try:
            os.kill(target, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def _serve(request: dict[str, Any]) -> dict[str, Any]:
    from gradmend.fix.proof import child

    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, _interrupt)
        os.environ.update(request.get("env", {}))
        child.run(request)
        os._exit(1)
    _running[:] = [pid]
    end = time.monotonic() + request["seconds"]
    pause = 0.005
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _kill(pid)  # what it left running, such as loader workers
            _running.clear()
            return {"late": False, "status": os.waitstatus_to_exitcode(status)}
        if time.monotonic() > end or os.getppid() == 1:
            _kill(pid)
            os.waitpid(pid, 0)
            return {"late": True, "status": None}
        time.sleep(pause)
        pause = min(pause * 1.3, 0.05)


if __name__ == "__main__":
    _interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    main()
