"""Each test starts with a ledger that holds nothing: a failed program before it may have left a cycle behind."""

from __future__ import annotations

import gc
import time

import pytest

from gradmend.capture.taps.hub import LEDGER


@pytest.fixture(autouse=True)
def empty_ledger() -> None:
    for _ in range(100):  # a device's thread lets go of a graph a little after its backward has raised
        gc.collect()
        LEDGER.bury()
        if LEDGER.kept_bytes() == 0:
            return
        time.sleep(0.01)
    raise AssertionError(f"{LEDGER.kept_bytes()} bytes are kept for a program that is gone")
