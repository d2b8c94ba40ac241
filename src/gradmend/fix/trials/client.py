"""The process that forks trial runs, seen from outside: start it, ask it, end it."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Host:
    def __init__(self, modules: list[str] | None = None) -> None:
        self.modules = modules or []
        self._process: subprocess.Popen[str] | None = None

    def ask(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Make these runs side by side."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        host = self._process
        assert host.stdin is not None and host.stdout is not None
        host.stdin.write(json.dumps(requests) + "\n")
        host.stdin.flush()
        line = host.stdout.readline()
        return json.loads(line) if line else [{"late": False, "status": "its host died"} for _ in requests]

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gradmend.fix.trials.host", *self.modules],
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
    """What takes long to import, better once than in each trial. Optimizers and checkpoints import all of dynamo (2.13)."""
    found: dict[str, None] = {}
    own = {p.stem for p in script.parent.iterdir()}
    for file in [script, *sorted(script.parent.glob("*.py"))[:50]]:
        try:
            text = file.read_bytes()
            tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError):
            continue
        if b"optim" in text or b"checkpoint" in text:
            found["torch._dynamo"] = None
        if file == script:
            found |= dict.fromkeys(_imported(tree, own))
    return list(found)


def _imported(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Installed modules that the script imports at once: every trial starts from a fork that has them."""
    for node in tree.body:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            top = name.partition(".")[0]
            spec = importlib.util.find_spec(top) if top not in own and top not in sys.modules else None
            if spec is not None and "site-packages" in (spec.origin or ""):
                yield name
