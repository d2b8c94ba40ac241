"""A process that has imported torch once and forks a child for each trial run.

Importing torch takes longer than most trials; forking before any tensor work is safe and quick.
Requests are JSON lines on stdin, each a list of runs to make side by side; the answer is a JSON line on stdout.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

from gradmend.fix.trials.serving import kill, running, serve


def main() -> None:
    import torch  # noqa: F401  (imported for the children)

    from gradmend.fix.trials import child, copies, memory, record, slopes  # noqa: F401

    for name in sys.argv[1:]:
        try:
            importlib.import_module(name)
        except Exception:  # the trial will say so itself
            continue
    _warm()
    out = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers = serve(json.loads(line), _start, lambda: os.getppid() == 1)
        out.write(json.dumps(answers) + "\n")
        out.flush()


def _warm() -> None:
    """Load what healing needs, once: the names to tap, the stories, derivatives.yaml. No backward runs: where there is a
    device, its thread would not live on in the forks."""
    from gradmend.api import watching  # noqa: F401
    from gradmend.capture.taps import homes
    from gradmend.story import linking, silent  # noqa: F401
    from gradmend.story.knowledge import by_node

    by_node("ExpBackward0")
    homes.patches()


# What SIGINT did when this process started: a trial has it as python would, also under nohup.
_interrupt: Any = signal.default_int_handler


def _stop(*_: object) -> None:
    """Asked to end: no trial outlives its host."""
    for pid in running:
        kill(pid)
    os._exit(0)


def _start(request: dict[str, Any]) -> int:
    from gradmend.fix.trials import child

    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, _interrupt)
        os.environ.update(request.get("env", {}))
        child.run(request)
        os._exit(1)
    return pid


if __name__ == "__main__":
    _interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    main()
