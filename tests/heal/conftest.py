"""Each test starts with a ledger that holds nothing: a failed program before it may have left a cycle behind."""

from __future__ import annotations

import gc

import pytest

from gradmend.capture.taps.hub import LEDGER


@pytest.fixture(autouse=True)
def empty_ledger() -> None:
    gc.collect()
    LEDGER.bury()
    assert LEDGER.kept_bytes() == 0
