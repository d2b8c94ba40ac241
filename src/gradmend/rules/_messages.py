"""Rules that are recognised by what PyTorch says: the sparse family, GM301 and up.

Such a rule holds the patterns of the messages beside its words. Nothing here imports torch.

>>> recognise("RuntimeError", "expand is unsupported for Sparse tensors").rule
'GM306'
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from gradmend.rules._rule import Rule


@dataclass(frozen=True, slots=True)
class Told:
    """One message retold. Its texts are filled with the groups of the first pattern that matches.

    `sure` is False where the message alone doesn't prove that a sparse tensor was involved.
    """

    title: str
    happened: str
    write: str
    says: tuple[str, ...]
    types: tuple[str, ...] = ("RuntimeError", "NotImplementedError")
    sure: bool = True
    rule: str = ""

    def of(self, rule: str, kind: str, message: str) -> Told | None:
        if kind not in self.types:
            return None
        for pattern in self.says:
            if found := re.search(pattern, message, re.DOTALL):
                values = {k: v or "" for k, v in found.groupdict().items()}
                title, happened, write = (
                    text.format(**values) for text in (self.title, self.happened, self.write)
                )
                return Told(title, happened, write, self.says, self.types, self.sure, rule)
        return None


@dataclass(frozen=True)
class SparseRule(Rule):
    """A rule with the messages it is recognised by; they also are its Why and its Fix."""

    told: tuple[Told, ...] = ()


def sparse_rule(told: tuple[Told, ...], raises: str = "", **words: Any) -> SparseRule:
    return SparseRule(
        told=told,
        why=_unfilled(t.happened for t in told),
        fix=_unfilled(t.write for t in told),
        raises=raises or re.sub(r"\?P<\w+>", "?:", told[0].says[0]),
        **words,
    )


def recognise(kind: str, message: str) -> Told | None:
    """The story of an error with this type and message, or None when it is not one of the family."""
    for rule in sparse_rules():
        for told in rule.told:
            if (found := told.of(rule.code, kind, message)) is not None:
                return found
    return None


def sparse_rules() -> tuple[SparseRule, ...]:
    from gradmend.rules import codes, get

    return tuple(rule for code in codes() if isinstance(rule := get(code), SparseRule))


def _unfilled(texts: Any) -> str:
    """What a message fills in stands in angle brackets."""
    return "\n\n".join(re.sub(r"\{(\w+)\}", r"<\1>", text) for text in texts)
