"""As PyTorch itself would do it: while `active`, nothing is healed, refused or told. The audit's first pass runs so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gradmend.capture.ledger.entries import Entry
from gradmend.capture.taps import hub

active = False


def ask(entry: Entry, packed: object = None) -> torch.Tensor:
    """What PyTorch would hand to backward, and its own refusal where the counter moved."""
    original = entry.original() if entry.original else None
    if entry.moved() and not entry.unchecked:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{entry.handle.type()} {list(entry.handle.shape)}] is at version {entry.handle._version}; "
            f"expected version {entry.version} instead"
        )
    if entry.swaps:
        return entry.swaps[-1][1] if original is None else original.detach()
    return entry.handle


@contextmanager
def as_pytorch() -> Iterator[None]:
    global active
    was, active = active, True
    if not was:
        hub.LEDGER.ask = ask  # type: ignore[method-assign]
    try:
        yield
    finally:
        active = was
        if not was:
            del hub.LEDGER.ask
