"""The process that forks trial runs, seen from outside: start it, ask it, end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class Host:
    def __init__(self, modules: list[str] | None = None) -> None:
        self.modules = modules or []
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        host = self._process
        assert host.stdin is not None and host.stdout is not None
        host.stdin.write(json.dumps(request) + "\n")
        host.stdin.flush()
        line = host.stdout.readline()
        return json.loads(line) if line else {"late": False, "status": "its host died"}

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gradmend.fix.proof.host", *self.modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "GRADMEND": "0"},
            start_new_session=True,  # Ctrl-C reaches us; we end it
        )

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def preload(script: Path) -> list[str]:
    """Optimizers and checkpoints import all of dynamo when first used (2.13): seconds, better once than in each trial."""
    for file in [script, *sorted(script.parent.glob("*.py"))[:50]]:
        try:
            text = file.read_bytes()
        except OSError:
            continue
        if b"optim" in text or b"checkpoint" in text:
            return ["torch._dynamo"]
    return []
