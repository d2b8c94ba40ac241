"""Values that a later computation reads and no version counter guards: only their bytes count."""

from __future__ import annotations

from gradmend.capture.ledger.entries import Save


class Unguarded(Save):
    __slots__ = ()

    def moved(self) -> bool:
        return False  # PyTorch never looks at its counter


class Kept(Unguarded):
    """A tensor on an attribute of a custom Function's ctx."""

    __slots__ = ("attribute", "function")

    attribute: str
    function: type


class Read(Unguarded):
    """A tensor from outside that a checkpointed region read, and will read again in backward."""

    __slots__ = ("op", "region")

    op: str
    region: object
