"""Python processes without the two to five seconds of importing torch: forks of one that has imported it.

`run([sys.executable, ...])` answers as `subprocess.run` does. The fork becomes what python would have started (`warm_host`):
its arguments, folder, environment, three standard files, a `__main__` of its own, and python's own end. What an interpreter
reads only as it starts (its options, variables such as PYTHONPATH) has it started anew; and what is to be judged by how
torch comes to be imported is not for this.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Read as python, torch or gradmend starts: another value than the host's needs another process.
AT_START = ("PYTHON", "GRADMEND", "TORCH_", "OMP_", "MKL_", "NUMBA_", "LD_", "LC_", "LANG", "PATH")


def run(
    words: Sequence[object],
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    timeout: float = 600,
    interrupt: str = "as here",
    umask: int = -1,
    check: bool = False,
    cold: bool = False,
) -> subprocess.CompletedProcess[str]:
    """What it says is captured, as text. `interrupt`: what SIGINT does to it at its start, "heeded" or "ignored". `cold`: no fork, an
    interpreter started anew."""
    texts = [str(w) for w in words]
    around = dict(os.environ if env is None else env)
    if not cold and _host.fits(texts, around):
        done = _host.fork(texts, around, str(cwd or os.getcwd()), input, timeout, interrupt, umask)
    else:
        done = subprocess.run(
            texts,
            cwd=cwd,
            env=around,
            input=input,
            timeout=timeout,
            umask=umask,
            capture_output=True,
            text=True,
            preexec_fn={"heeded": heed, "ignored": ignore}.get(interrupt),
        )
    if check:
        done.check_returncode()
    return done


def heed() -> None:
    """For a child, as in a terminal: one that was started with SIGINT ignored (nohup, many CI runners) would ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignore() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Host:
    """One for each worker of pytest, started when first asked for; it ends when its standard input does."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.environ: dict[str, str] = {}

    def start(self) -> None:
        if self.process is None:
            self.environ = dict(os.environ)
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("warm_host.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C reaches pytest, which ends it
            )
            atexit.register(self.close)

    def fits(self, words: list[str], around: dict[str, str]) -> bool:
        if not hasattr(os, "fork") or words[0] != sys.executable:
            return False
        if words[1] not in ("-m", "-c") and not words[1].endswith(".py"):  # an option of python's, a zip file
            return False
        self.start()
        names = around.keys() | self.environ.keys()
        changed = [n for n in names if (around.get(n) or "0") != (self.environ.get(n) or "0")]
        return not any(name.startswith(AT_START) for name in changed)

    def fork(
        self,
        words: list[str],
        around: dict[str, str],
        cwd: str,
        text: str | None,
        timeout: float,
        interrupt: str,
        umask: int,
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder, name) for name in ("in", "out", "err")]
            files[0].write_text(text or "")
            request = {
                "words": words[1:],
                "env": around,
                "cwd": cwd,
                "files": [str(f) for f in files],
                "timeout": timeout,
                "interrupt": interrupt,
                "umask": umask,
            }
            code = self._ask(request)
            out, err = (f.read_text(errors="surrogateescape") for f in files[1:])
        if code is None:
            raise subprocess.TimeoutExpired(words, timeout, out, err)
        return subprocess.CompletedProcess(words, code, out, err)

    def _ask(self, request: dict[str, Any]) -> int | None:
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"the host of warm processes ended with {process.wait()}"
        return json.loads(line)

    def close(self) -> None:
        process, self.process = self.process, None
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.wait()
            process.stdout.close()


_host = _Host()
