"""The sentences of the silent wrongs."""

from __future__ import annotations

import re

from gradmend.capture.ledger.findings import SilentFinding
from gradmend.model import Frame, Save, Write
from gradmend.story.words import asker, at, common, counted

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
    return asker(backward, backward)


def kept(
    function: str,
    attribute: str,
    save: Save,
    write: Write | None,
    backward: Frame | None,
    left: str | None = None,
) -> str:
    near = common(backward, save.site.user, write.site.user if write else None)
    name = f"`{write.tensor.name}`" if write and write.tensor.name else "a tensor"
    where = (
        f"{at(write.site.user, near)} changes {name} in place"
        if write
        else f"a tensor was changed after gradmend.{left}() was left"
        if left
        else "something unseen changed a tensor"
    )
    return (
        f"{where}, but {asker(backward, near)} still needs it as `ctx.{attribute}`, where {function} keeps it on "
        f"{at(save.site.user, near)}; PyTorch does not guard attributes of ctx, and computes with the changed value"
    )


def message(
    finding: SilentFinding, save: Save | None, write: Write | None, also: Frame | None, backward: Frame | None
) -> str:
    line = at(write.site.user if write else None, backward)
    name = f"`{write.tensor.name}`" if write and write.tensor.name else "a tensor"
    made = save.site.user if save else None
    facts = finding.facts
    if finding.rule == "GM206" and facts.get("why") == "late":
        copy = f"{write.tensor.name if write and write.tensor.name else 'x'}.clone()"
        return (
            f"the forward of {finding.op} changes its input on {line}, after ctx.save_for_backward: backward is given {name} as it is "
            f"at forward's end. If its formula needs the value from before, save a copy: ctx.save_for_backward({copy})"
        )
    if finding.rule == "GM206":
        wrote = f"{line} writes" if write and write.site.frames else "it writes"
        return (
            f"the forward of {finding.op} changes its input without ctx.mark_dirty: {wrote} {name}; autograd goes on as if "
            "the input still had its old value"
        )
    if finding.rule == "GM210" and finding.escape:
        return (
            f"memory handed out on {line} was changed behind autograd's back, then {op_of(finding.op)} on {at(made, backward)} used "
            f"it again: {_needs(backward)} sends {_to_changed(facts['wrong'])}"
        )
    if finding.rule == "GM210":
        where = f" on {at(made, backward)}" if made else ""
        return (
            f"{line} changed {name} outside autograd, then {op_of(finding.op)}{where} used it again: {_needs(backward)} sends "
            f"{_to_changed(facts['wrong'])}"
        )
    if finding.rule == "GM202":
        return (
            f"the program's saved-tensor hooks give {_needs(backward)} another value than they were given on {at(made, backward)}: "
            "what they keep it in was overwritten"
        )
    if finding.rule == "GM207" and facts.get("repeats"):
        return (
            f"{line} writes to a part of the gradient that {facts['who']} was given, in which one number stands for several "
            "elements: the write changes the others too"
        )
    if finding.rule == "GM207":
        return (
            f"{line} writes to the gradient that {facts['who']} was given, and {facts['harmed']} gets the same memory: its "
            "gradient is wrong"
        )
    return _checkpoint(finding, line, name, made, also, backward, write)


def _to_changed(count: int) -> str:
    still = "it still was" if count == 1 else "they still were"
    return f"a gradient to {counted(count, 'changed element')} as if {still} what the graph computed"


def _checkpoint(
    finding: SilentFinding,
    line: str,
    name: str,
    made: Frame | None,
    also: Frame | None,
    backward: Frame | None,
    write: Write | None,
) -> str:
    facts = finding.facts
    if facts.get("why") in RANDOM:
        own = " from a generator of its own" if facts["why"] == "generator" else ""
        return (
            f"the checkpointed region on {at(made, backward)} draws random numbers{own}, and its recomputation in "
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


def notes(finding: SilentFinding, also: Frame | None, backward: Frame | None) -> tuple[str, ...]:
    told: list[str] = []
    facts = finding.facts
    if finding.rule == "GM210":
        told.append(
            f"{counted(facts['edited'], 'element')} {'was' if facts['edited'] == 1 else 'were'} changed; the gradient that arrives there is not zero for {facts['wrong']}. "
            "Gradmend stops under heal() too: an edit has no old value to give back, it must become part of the graph"
        )
    if finding.rule == "GM208" and facts.get("why") not in RANDOM:
        told.append(
            "heal() stops here too: the old value is read by a forward that runs again, not handed to a backward"
        )
        if also is not None:
            told.append(f"it is read again on {at(also, backward)}")
    if finding.rule == "GM207" and facts.get("note"):
        told.append(str(facts["note"]))
    return tuple(told)


# By why a region draws other numbers: what to do.
RANDOM = {
    "rng": "let checkpoint put the random state back: `preserve_rng_state=True`, which is its default",
    "generator": "draw the numbers before the region and pass them in, or set the generator's state at its start: "
    "`preserve_rng_state` restores PyTorch's global generators only",
}


def helps(rule: str, why: object = None) -> tuple[str, ...]:
    explained = f"`gradmend explain {rule}` tells more"
    return (RANDOM[str(why)], explained) if why in RANDOM else (explained,)
