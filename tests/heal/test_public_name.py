"""`gradmend.heal()` is a function by whatever road its package was imported before."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "first",
    ["gradmend.capture.memory.undo", "gradmend.capture.ledger.ledger", "gradmend.api.installing", "gradmend"],
)
def test_heal_can_be_called_whatever_was_imported_first(first: str) -> None:
    program = f"import {first}\nimport gradmend\nwith gradmend.heal(budget='1MB') as session:\n    pass\nprint(session.outcome)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stdout == "clean\n", run.stderr
