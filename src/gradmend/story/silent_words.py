"""The sentences of the silent wrongs."""

from __future__ import annotations

import re

from gradmend.capture.ledger.silent_findings import Fault
from gradmend.model import Frame, Save, Write
from gradmend.story.words import at

KEPT_NOTES = (
    "a tensor on a ctx attribute has no version check: save_for_backward would have raised instead",
)


def op_of(node: str) -> str:
    """ "MulBackward0" -> "mul"; the name of a custom Function stays."""
    plain = re.sub(r"Backward\d*$", "", node)
    if plain == node:
        return node
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain).lower()


def _needs(backward: Frame | None) -> str:
    return f"backward() on {at(backward)}" if backward else "backward()"


def kept(function: str, attribute: str, save: Save, write: Write | None, backward: Frame | None) -> str:
    where = f"{at(write.site.user, backward)} overwrote" if write else "something unseen overwrote"
    return (
        f"{where} `ctx.{attribute}`, which {function} kept on {at(save.site.user, backward)}, and {_needs(backward)} "
        "needs; PyTorch does not guard ctx attributes and computes a wrong gradient"
    )


def message(
    fault: Fault, save: Save | None, write: Write | None, also: Frame | None, backward: Frame | None
) -> str:
    line = at(write.site.user if write else None, backward)
    name = f"`{write.tensor.name}`" if write and write.tensor.name else "a tensor"
    made = save.site.user if save else None
    facts = fault.facts
    if fault.rule == "GM206":
        wrote = f"{line} writes" if write and write.site.frames else "it writes"
        return (
            f"the forward of {fault.op} changes its input without ctx.mark_dirty: {wrote} {name}; autograd goes on as if "
            "the input still had its old value"
        )
    if fault.rule == "GM210" and fault.escape:
        return (
            f"memory handed out on {line} was changed behind autograd's back, then {op_of(fault.op)} on {at(made, backward)} used "
            f"it again: {_needs(backward)} sends a gradient to {facts['wrong']} changed elements as if they still were what the "
            "graph computed"
        )
    if fault.rule == "GM210":
        where = f" on {at(made, backward)}" if made else ""
        return (
            f"{line} changed {name} outside autograd, then {op_of(fault.op)}{where} used it again: {_needs(backward)} sends a "
            f"gradient to {facts['wrong']} changed elements as if they still were what the graph computed"
        )
    if fault.rule == "GM207":
        return (
            f"{line} writes to the gradient that {facts['who']} was given, and {facts['harmed']} gets the same memory: its "
            "gradient is wrong"
        )
    return _checkpoint(fault, line, name, made, also, backward, write)


def _checkpoint(
    fault: Fault,
    line: str,
    name: str,
    made: Frame | None,
    also: Frame | None,
    backward: Frame | None,
    write: Write | None,
) -> str:
    facts = fault.facts
    if facts.get("why") == "rng":
        return (
            f"the checkpointed region on {at(made, backward)} draws random numbers, and its recomputation in "
            f"{_needs(backward)} draws others: the gradient belongs to another forward"
        )
    if facts.get("why") == "write":
        return (
            f"{line} changed {name}, which the checkpointed region read on {at(made, backward)} and reads again when "
            f"{_needs(backward)} recomputes it: the gradient belongs to another forward"
        )
    if facts.get("why") == "unseen":
        return (
            f"a tensor that the checkpointed region read on {at(made, backward)} has changed unseen before "
            f"{_needs(backward)} recomputes it: the gradient belongs to another forward"
        )
    return (
        f"the checkpointed region ran {facts.get('first')} on {at(made, backward)}, and its recomputation in "
        f"{_needs(backward)} {facts.get('then')}: the gradient belongs to another forward"
    )


def notes(fault: Fault, also: Frame | None, backward: Frame | None) -> tuple[str, ...]:
    told: list[str] = []
    facts = fault.facts
    if fault.rule == "GM210":
        told.append(
            f"{facts['edited']} elements were changed; the gradient that arrives there is not zero for {facts['wrong']}. "
            "Gradmend stops under heal() too: an edit has no old value to give back, it must become part of the graph"
        )
    if fault.rule == "GM208" and facts.get("why") != "rng":
        told.append(
            "heal() stops here too: the old value is read by a forward that runs again, not handed to a backward"
        )
        if also is not None:
            told.append(f"it is read again on {at(also, backward)}")
    if fault.rule == "GM207" and facts.get("note"):
        told.append(str(facts["note"]))
    return tuple(told)


ADVICE = {
    "GM205": "keep it with ctx.save_for_backward, and write out of place",
    "GM206": "work on a copy in forward, or call ctx.mark_dirty(input) and return the input",
    "GM207": "return a new tensor from the hook (`return grad * 2`) instead of writing to the one it was given",
    "GM208": "write after backward(), or pass the value as an argument and bind a new tensor instead of writing the old one",
    "GM210": "make the edit in the open (`{name} = {name}.masked_fill(...)`, `torch.where`); for a straight-through gradient "
    "write `{name} = {name} + (edited - {name}).detach()`",
}


RANDOM = "let checkpoint put the random state back: `preserve_rng_state=True`, which is its default"


def helps(rule: str, name: str | None, why: object = None) -> tuple[str, ...]:
    if why == "rng":
        return (RANDOM, f"`gradmend explain {rule}` tells more")
    name = re.split(r"[.\[]", name)[0] if name else "x"
    return (ADVICE[rule].format(name=name), f"`gradmend explain {rule}` tells more")
