"""`gradmend.heal()` is a function by whatever road its package was imported before."""

import subprocess
import sys

import pytest

FIRST = (
    "gradmend.capture.memory.undo",
    "gradmend.capture.ledger.ledger",
    "gradmend.api.installing",
    "gradmend",
)
# One process imports torch, and a fork of it each of these.
PROGRAM = f"""
import os, torch
for first in {FIRST}:
    if os.fork() == 0:
        __import__(first)
        import gradmend
        with gradmend.heal(budget="1MB") as session:
            pass
        print(first, session.outcome, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_heal_can_be_called_whatever_was_imported_first() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == [f"{first} clean" for first in FIRST], run.stderr
