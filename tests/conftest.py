"""The order of the tests: `GRADMEND_ORDER=7` mixes them by that seed, and what one leaves behind is met by others.

And their speed: what collection loaded stays, so the collector need not look through it at each `gc.collect()`; and torch's op
database walks the whole stack for a unittest at each op, of which we have none.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seed = os.environ.get("GRADMEND_ORDER")
    if seed:
        files: dict[object, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(item.path, []).append(item)
        mixed = random.Random(seed)
        groups = list(files.values())
        mixed.shuffle(groups)  # a file stays together: its fixtures are made once
        for group in groups:
            mixed.shuffle(group)
        items[:] = [item for group in groups for item in group]


_file: object = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What the tests of other files loaded (dynamo, numba's kernels: a million objects) stays too.

    Not while a Save lives that such a test has yet to let go of: with a graph that is a cycle it would live for ever.
    """
    global _file
    if item.path != _file:
        _file = item.path
        gc.collect()
        hub = sys.modules.get("gradmend.capture.taps.hub")
        if hub is None or "saves" not in hub.awake:
            gc.freeze()


def pytest_collection_finish() -> None:
    database = sys.modules.get("torch.testing._internal.common_utils")
    if hasattr(database, "extract_test_fn"):
        database.extract_test_fn = lambda: None  # what it finds here
    gc.collect()
    gc.freeze()


@pytest.fixture
def empty_ledger() -> None:
    """A ledger that holds nothing: a failed program before this test may have left a cycle behind."""
    from gradmend.capture.taps.hub import LEDGER

    for _ in range(100):  # a device's thread lets go of a graph a little after its backward has raised
        gc.collect()
        LEDGER.bury()
        if LEDGER.kept_bytes() == 0:
            return
        gc.unfreeze()  # let go of by another file's tests after these had begun
        time.sleep(0.01)
    raise AssertionError(f"{LEDGER.kept_bytes()} bytes are kept for a program that is gone")
