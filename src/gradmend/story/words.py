"""The sentences of a conflict. All of them are here, so that one voice speaks and tests can read it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gradmend.capture.ledger.findings import Finding
from gradmend.model import Frame, Save, Site, Write
from gradmend.story.names import enclosing_loop


def at(frame: Frame | None, near: Frame | None = None) -> str:
    """ "line 12", with its file where that is another one."""
    if frame is None:
        return "an unknown line"
    if near is not None and near.file == frame.file:
        return f"line {frame.line}"
    return f"{os.path.basename(frame.file)} line {frame.line}"


def _near(backward: Frame | None, *others: Frame | None) -> Frame | None:
    """Only where all is in one file may a line go without it."""
    alone = backward is not None and all(f is None or f.file == backward.file for f in others)
    return backward if alone else None


def what(save: Save) -> str:
    name = f"`{save.tensor.name}`" if save.tensor.name else f"a {save.tensor}"
    if save.slot and save.slot.startswith("result"):
        return f"the result of {save.op}" + (f", {name}" if save.tensor.name else "")
    return name


def message(
    kind: str, cause: str, save: Save, write: Write | None, backward: Frame | None, escape: Frame | None
) -> str:
    near = _near(backward, save.site.user, write.site.user if write else None, escape)
    kept = f"{what(save)}, which {save.op} on {at(save.site.user, near)} kept"
    needs = f"and backward() on {at(backward)} needs" if backward else "and backward() needs"
    if kind == "refused-but-right":
        where = at(write.site.user, near) if write else "something"
        return (
            f"PyTorch would refuse this backward() although the gradient is right: {where} wrote to memory of {kept}, "
            "but no value that backward reads has changed"
        )
    if cause == "unknown":
        return f"something unseen overwrote {kept} {needs}"
    if cause == "foreign":
        handed = (
            f"memory handed out on {at(escape, near)}" if escape else "memory shared with code outside torch"
        )
        return f"{handed} was changed behind PyTorch's back: it held {kept} {needs}"
    if write is None:
        return f"{kept} {needs}, has changed"
    verb = "put other memory under" if cause == "swap" else "overwrote"
    silent = "; PyTorch does not notice and computes a wrong gradient" if kind == "silent" else ""
    return f"{at(write.site.user, near)} {verb} {kept} {needs}{silent}"


def notes(finding: Finding, save: Save, writes: Sequence[Write], escape: Site | None) -> tuple[str, ...]:
    told: list[str] = []
    first = writes[0] if writes else None
    if finding.cause == "unknown":
        told.append(
            "the version counter of the tensor stepped, but no write went through Python: compiled or scripted code, "
            "a C++ extension, a name imported before Gradmend was armed, or backward() accumulating into a saved .grad"
        )
    if first is not None:
        if first.site.library is not None:
            lib = first.site.library
            told.append(f"the write is inside a library: {lib.function} at {lib.file}:{lib.line}")
        if first.view:
            told.append(
                f"the write covers {first.view}" + (f"; the saved tensor is {save.view}" if save.view else "")
            )
        if first.times > 1:
            loop = enclosing_loop(first.site.user) if first.site.user else None
            told.append(
                f"that line wrote it {first.times} times between the save and backward()"
                + (f", in the loop on line {loop}" if loop else "")
            )
        if first.quiet and finding.harmful and finding.cause == "write":
            told.append("the write moved no version counter, so PyTorch's own check can not see it")
    if not finding.harmful and finding.changed:
        told.append(f"backward of {save.op} never reads this value: {save.slot} was kept for its shape alone")
    return tuple(told)


def helps(rule: str, kind: str, save: Save, write: Write | None, backward: Frame | None) -> tuple[str, ...]:
    if kind == "refused-but-right":
        return (
            "run it under gradmend.heal(), or write out of place so that PyTorch's own check passes",
            f"`gradmend explain {rule}` tells more",
        )
    first = ADVICE.get(rule)
    name = (write.tensor.name if write else None) or "x"
    wrote, kept = write.site.user if write else None, save.site.user
    near = _near(backward, wrote, kept)
    line, saved = at(wrote, near), at(kept, near)
    out = [first.format(name=name, line=line, op=save.op, saved=saved)] if first else []
    healable = "runs the program as it is with the right gradient"
    if rule in UNHEALABLE:
        healable = "stops here too: the old value is gone"
    out.append(f"`gradmend explain {rule}` tells more; gradmend.heal() {healable}")
    return tuple(out)


# Where nothing kept the old value.
UNHEALABLE = frozenset({"GM110", "GM202", "GM206", "GM207", "GM208", "GM210"})

# What to change, by rule. {name} is the written tensor, {line} the write, {saved} the line that kept the value.
ADVICE: dict[str, str] = {
    "GM101": "write {line} out of place (`{name} = ...` makes a new tensor), or clone the result of {op} first",
    "GM102": "write {line} out of place, or give {op} on {saved} a clone of what {line} overwrites",
    "GM103": "collect the pieces in a list and torch.stack or torch.cat them, or clone the slice that {saved} reads",
    "GM104": "call step() after the last backward() that needs these parameters",
    "GM105": "do the update on {line} after backward(), or let {saved} use a clone",
    "GM106": "give {saved} a clone of the index, or build the new one out of place on {line}",
    "GM107": "use inplace=False there, or clone its input",
    "GM108": "use the table's .clone() on {saved}, or do the lookup first: max_norm renormalises the table in place",
    "GM110": "find the write between {saved} and backward(); under torch.compile or jit, try the code in eager mode",
    "GM201": "write `{name}` out of place, or after backward(): autograd sees no write through .data, nor one through "
    "memory that is shared",
    "GM202": "copy at the border: tensor.clone(), or array.copy() before torch.from_numpy",
    "GM203": "call step() after the last backward() that needs these parameters",
    "GM204": "assign new data after backward(), or build the update out of place",
    "GM209": "run the collective on a clone, or after backward()",
    "GM211": "finish backward() of the eval-mode forward before running in train mode",
}
