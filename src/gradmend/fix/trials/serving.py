"""Start processes for trial runs and wait for them, each with its time limit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

running: list[int] = []


def kill(pid: int) -> None:
    for target in (-pid, pid):  # the group first: it may outlive the child itself
        try:
            os.kill(target, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def serve(
    requests: list[dict[str, Any]], start: Callable[[dict[str, Any]], int], gone: Callable[[], bool]
) -> list[dict[str, Any]]:
    """Make these runs side by side. `gone`: nobody waits for them any more."""
    began = time.monotonic()
    left: dict[int, int] = {}
    for order, request in enumerate(requests):
        left[start(request)] = order
    running[:] = list(left)
    answers: list[dict[str, Any]] = [{} for _ in requests]
    pause = 0.005
    while left:
        for pid, order in list(left.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            took = time.monotonic() - began
            late = not done and (took > requests[order]["seconds"] or gone())
            if done or late:
                kill(pid)  # also what it left running, such as loader workers
                if late:
                    os.waitpid(pid, 0)
                code = os.waitstatus_to_exitcode(status) if done else None
                answers[order] = {"late": late, "status": code, "took": took}
                del left[pid]
        time.sleep(pause if left else 0)
        pause = min(pause * 1.3, 0.05)
    running.clear()
    return answers
