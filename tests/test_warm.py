"""A fork of the warm process is what python would have started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import warm

PROGRAM = """\
import atexit, os, signal, sys, threading, time
atexit.register(lambda: print("at exit"))
threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
print(sys.argv, sys.path[0], os.getcwd(), __name__, globals().get("__file__"), os.environ.get("COLOUR"))
print(sys.modules["__main__"].__dict__ is globals(), sys.executable, input(), signal.getsignal(signal.SIGINT))
print("warm" in sys.modules, "words", file=sys.stderr)
"""
ENDS = {
    "": 0,
    "sys.exit(3)": 3,
    "os._exit(4)": 4,
    "os.kill(os.getpid(), 9)": -9,
    "raise KeyboardInterrupt": -2,
}


@pytest.mark.parametrize("interrupt", ["heeded", "ignored"])
@pytest.mark.parametrize("how", ["script", "-m", "-c"])
def test_it_is_set_up_alike(tmp_path: Path, how: str, interrupt: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = {"script": ["program.py"], "-m": ["-m", "program"], "-c": ["-c", PROGRAM]}[how]
    here = os.environ | {"COLOUR": "red"}
    cold, forked = (
        warm.run(
            [sys.executable, *words, "a b", "-x"],
            cwd=tmp_path,
            env=here,
            input="said",
            interrupt=interrupt,
            cold=cold,
        )
        for cold in (True, False)
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (0, cold.stdout, cold.stderr)
    assert cold.stdout.endswith("thread\nat exit\n") and "said" in cold.stdout and "red" in cold.stdout


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_alike(tmp_path: Path, end: str) -> None:
    program = f"import os, sys\nprint(1, flush=True)\n{end}\n"
    done = warm.run([sys.executable, "-c", program], interrupt="heeded")
    assert (done.returncode, done.stdout) == (ENDS[end], "1\n")


def test_forks_have_torch_and_know_nothing_of_each_other(tmp_path: Path) -> None:
    look = "import sys; print('torch' in sys.modules, hasattr(sys, 'seen')); sys.seen = 1"
    for _ in range(2):
        assert warm.run([sys.executable, "-c", look]).stdout == f"{hasattr(os, 'fork')} False\n"


def test_one_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.3)
