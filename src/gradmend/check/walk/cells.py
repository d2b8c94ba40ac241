"""Names and attributes that a checkpointed function reads from outside: it runs again in backward, and reads them anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradmend.check.ledger import Save, Write
from gradmend.check.values import Const, Number, Storage, Tensor, Value

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Cells:
    """A name that was read is a piece of memory of its own: binding it to something else is a Write."""

    __slots__ = ("_read", "walk")

    def __init__(self, walk: Walker) -> None:
        self.walk = walk
        self._read: dict[tuple[int, str], tuple[Storage, dict]] = {}  # the dict too: its id stays its own

    def read(self, home: dict, name: str, value: Value) -> None:
        """A name of `home` is read while a checkpointed function runs."""
        region = self.walk.recomputed
        if region is None or not _counts(value) or self.walk.healed or self.walk.statement is None:
            return
        cell, _ = self._read.setdefault((id(home), name), (Storage(name, "name"), home))
        if cell.saves and cell.saves[-1].node is region.node:
            return
        self.walk.ledger.save(
            Save(
                cell,
                region.node,
                self.walk.at(self.walk.statement),
                "checkpoint",
                "name",
                name,
                self.walk.ledger.now(),
                self.walk.path,
                sure=False,  # the new value may do the same
                leaf=False,
                whole=None,
                unguarded=True,
                lent=self.walk.lent(),
            )
        )

    def bound(self, home: dict, name: str, value: Value) -> None:
        """A name of `home` is given a value."""
        if not self._read or self.walk.statement is None:
            return
        there = self._read.get((id(home), name))
        if there is None or home.get(name) is value or self.walk.recomputed is not None:
            return
        self.walk.ledger.write(
            there[0],
            Write(
                self.walk.at(self.walk.statement),
                "=",
                "rebound",
                name,
                self.walk.ledger.now(),
                self.walk.path,
                sure=False,
                via=self.walk.via(),
                lent=self.walk.lent(),
            ),
        )


def _counts(value: Any) -> bool:
    """A tensor or a number: what a function computes with."""
    if isinstance(value, Tensor):
        return not value.opaque
    return isinstance(value, Number) or (isinstance(value, Const) and isinstance(value.value, (int, float)))
