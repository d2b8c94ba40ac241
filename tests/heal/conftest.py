"""Each test of healing starts with a ledger that holds nothing."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def from_nothing(empty_ledger: None) -> None:
    pass
