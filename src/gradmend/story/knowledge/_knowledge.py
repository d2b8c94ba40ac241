"""The answer to "what does this op keep, and may I write to its input or output afterwards?"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradmend.story.knowledge._composite import Measured
from gradmend.story.knowledge._entries import Entry
from gradmend.story.knowledge._plain import is_plain, why_needed


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known of one op.

    `overloads` are its entries in derivatives.yaml. An op made of other ops has none that count: then
    `measured` is what a tiny run of it recorded, where one could be made. `note` says what else matters.
    """

    op: str
    overloads: tuple[Entry, ...] = ()
    inplace: bool = False
    measured: Measured | None = None
    note: str = ""

    @property
    def known(self) -> bool:
        return bool(self.overloads or self.measured)

    @property
    def keeps(self) -> tuple[str, ...]:
        """Names of the inputs it keeps, and of its results: "result", or theirs."""
        return tuple(dict.fromkeys(slot for e in self.overloads for slot in e.keeps))

    @property
    def formulas(self) -> dict[str, str]:
        """Differentiable input -> how its gradient is computed, in the first overload that has it."""
        found: dict[str, str] = {}
        for entry in self.overloads:
            for f in entry.formulas:
                for name in f.inputs:
                    found.setdefault(name, f.text)
        return found

    @property
    def results(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r for e in self.overloads for r in e.results))

    @property
    def kept_inputs(self) -> tuple[str, ...]:
        """Inputs whose memory is kept. An in-place op keeps a copy of what `self` was, not self's memory."""
        return tuple(s for s in self.keeps if s not in self.results and not (self.inplace and s == "self"))

    @property
    def kept_results(self) -> tuple[str, ...]:
        return tuple(s for s in self.keeps if s in self.results)

    @property
    def writing_input_is_safe(self) -> bool | None:
        """May the op's inputs be overwritten before backward? None where nothing is known."""
        if self.overloads:
            return not self.kept_inputs
        return None if self.measured is None else not self.measured.kept_inputs

    @property
    def writing_output_is_safe(self) -> bool | None:
        """May the op's output be overwritten before backward? None where nothing is known."""
        if self.overloads:
            return not self.kept_results
        return None if self.measured is None else not self.measured.keeps_output

    def name_of(self, slot: str) -> str:
        """A slot as people say it: "its result", "its input", "its input `other`"."""
        slot = slot.partition("[")[0]
        if slot in self.results:
            return "its result" if slot == "result" or len(self.results) == 1 else f"its result `{slot}`"
        tensors = {t for e in self.overloads for t in e.tensors}
        if slot == "self" and self.inplace:
            return "a copy of what its input was"
        return "its input" if len(tensors) == 1 else f"its input `{slot}`"

    def why(self, slot: str | None) -> str:
        """One sentence: why the op kept this slot."""
        if slot is not None:
            base = slot.partition("[")[0]
            for entry in self.overloads:
                readers = entry.readers(base)
                if readers:
                    first = readers[0]
                    inputs, formula = why_needed(entry.node, first.inputs, first.text, base)
                    of = " and ".join(f"`{n}`" for n in inputs)
                    return f"{self.op} keeps {self.name_of(base)}, because it computes the gradient of {of} {formula}."
        if self.note:
            return self.note
        return f"{self.op} kept this value for its backward."

    def reason(self, slot: str) -> tuple[tuple[str, ...], str] | None:
        """The inputs whose gradient needs this slot, and how it is computed, where that can be said in Python or words."""
        for entry in self.overloads:
            readers = entry.readers(slot)
            if readers:
                first = readers[0]
                inputs, formula = why_needed(entry.node, first.inputs, first.text, slot)
                return inputs, formula.removeprefix("as ").strip("`") if is_plain(entry.node, slot) else ""
        return None

    def as_json(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "inplace": self.inplace,
            "keeps": list(self.keeps),
            "formulas": self.formulas,
            "writing_input_is_safe": self.writing_input_is_safe,
            "writing_output_is_safe": self.writing_output_is_safe,
            "overloads": [
                {"schema": e.schema, "node": e.node, "keeps": list(e.keeps)} for e in self.overloads
            ],
            "made_of": list(self.measured.nodes) if self.measured else [],
            "note": self.note,
        }
