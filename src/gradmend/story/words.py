"""The sentences of a conflict. All of them are here, so that one voice speaks and tests can read it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from gradmend.capture.ledger.findings import Finding
from gradmend.model import Frame, Save, Site, Write
from gradmend.story.iterations import Later
from gradmend.story.names import call_name, enclosing_loop


def at(frame: Frame | None, near: Frame | None = None) -> str:
    """ "line 12", with its file where that is another one."""
    if frame is None:
        return "an unknown line"
    if near is not None and near.file == frame.file:
        return f"line {frame.line}"
    return f"{os.path.basename(frame.file)} line {frame.line}"


def bare(written: Frame | None, saved: Frame | None, backward: Frame | None) -> str:
    """What the ledger alone knows, for a story that failed."""
    here = common(written, saved, backward)
    by = "something that no tap saw" if written is None else at(written, here)
    return f"{by} changes in place what {at(saved, here)} kept for backward() on {at(backward, here)}"


def ours_failed(ours: Exception) -> str:
    return f"gradmend could not tell more, which is its own mistake: {type(ours).__name__}: {ours}"


def counted(n: int, word: str) -> str:
    return f"{n:,} {word}{'s' if n != 1 else ''}"


def common(*frames: Frame | None) -> Frame | None:
    """Only where all is in one file may a line go without it."""
    known = [f for f in frames if f is not None]
    return known[0] if known and all(f.file == known[0].file for f in known) else None


def message(
    kind: str,
    cause: str,
    save: Save,
    write: Write | None,
    backward: Frame | None,
    escape: Frame | None,
    policy: str = "watch",
) -> str:
    near = common(backward, save.site.user, write.site.user if write else None, escape)
    needs = f"{asker(backward, near)} still needs {needed(save, near)}"
    if kind == "refused-but-right" and write is not None and write.op == "detach_":
        return (
            f"{at(write.site.user, near)} cuts {named(save.tensor.name, save)} from its graph with detach_(), and {needs}: "
            "PyTorch refuses this backward(), although the gradient is right"
        )
    if kind == "refused-but-right":
        who = changes(write, save, near) if write else f"something wrote to {named(save.tensor.name, save)}"
        return f"PyTorch refuses this backward() although the gradient is right: {who}, but no value that backward() reads"
    if cause == "unknown":
        return f"something unseen changed {named(save.tensor.name, save)} in place, but {needs}"
    if cause == "left":
        return f"{named(save.tensor.name, save)} was changed in place after gradmend.{policy}() was left, but {needs}"
    if cause == "foreign":
        handed = (
            f"memory handed out on {at(escape, near)}" if escape else "memory shared with code outside torch"
        )
        return f"{handed} was changed behind PyTorch's back, but {needs}"
    if write is None:
        return f"{needs}, and it has changed"
    silent = "; PyTorch does not notice, and computes with the changed value" if kind == "silent" else ""
    if cause == "swap":
        return f"{at(write.site.user, near)} puts other memory under {named(write.tensor.name, save)}, but {needs}{silent}"
    return f"{changes(write, save, near)}, but {needs}{silent}"


def asker(backward: Frame | None, near: Frame | None) -> str:
    return f"backward() on {at(backward, near)}" if backward else "backward()"


def changes(write: Write, save: Save, near: Frame | None) -> str:
    """ "line 5 changes `h` in place": who wrote, and that it is the saved memory where the name does not say so."""
    line = at(write.site.user, near)
    by = stepper(write)
    who = f"{by} on {line}" if by else line
    name = write.tensor.name
    if by and save.tensor.name:
        name = save.tensor.name
    shared = ""
    if name and save.tensor.name and root(name) != root(save.tensor.name):
        shared = f", which shares memory with `{save.tensor.name}`"
    return f"{who} changes {named(name, save)} in place{shared}"


def needed(save: Save, near: Frame | None) -> str:
    """ "`h` as sigmoid returned it on line 4"."""
    frame, name = save.site.user, save.tensor.name
    where = f" on {at(frame, near)}" if frame is not None else ""
    op = spoken(save)
    if is_output(save):
        return f"`{name}` as {op} returned it{where}" if name else f"what {op} returned{where}"
    if name and not is_direct(save.site) and frame is not None:
        return f"`{name}` as {at(frame, near)} used it"
    return f"`{name}` as {op} used it{where}" if name else f"the {save.tensor} that {op} used{where}"


def named(name: str | None, save: Save) -> str:
    return f"`{name}`" if name else f"a {save.tensor}"


def root(name: str) -> str:
    """`h` of `h[0].data`; of `self.h[0]` all but the item."""
    bare = re.sub(r"\.(data|T|mT|real|imag)\b", "", name)
    return re.split(r"[\[(]", bare)[0]


def is_output(save: Save) -> bool:
    return bool(save.slot) and str(save.slot).startswith(("result", "output"))


def is_direct(site: Site) -> bool:
    """The user's own line called the op, or wrote an operator, which goes through a line of torch's own."""
    first = next((f for f in site.frames if not f.file.replace("\\", "/").endswith("torch/_tensor.py")), None)
    return first is not None and first.owner == "user"


def spoken(save: Save) -> str:
    """The op as the line calls it: "`*`", "F.linear"; the op's own name where a library called it."""
    frame = save.site.user
    called = call_name(frame) if frame is not None and is_direct(save.site) else None
    return called or save.op or "an op"


def stepper(write: Write) -> str | None:
    """ "SGD.step", where an optimizer wrote below the user's line."""
    if write.op.endswith(".step"):  # the recorder notes the call, not what it does inside
        return write.op
    for frame in write.site.frames:
        if frame.owner == "user":
            return None
        if frame.function.endswith(".step"):
            return frame.function
    return None


def notes(finding: Finding, save: Save, writes: Sequence[Write], escape: Site | None) -> tuple[str, ...]:
    told: list[str] = []
    first = writes[0] if writes else None
    if finding.cause == "unknown":
        told.append(
            "the version counter of the tensor stepped, but no write went through Python: compiled or scripted code, "
            "a C++ extension, a name imported before Gradmend was armed, or backward() accumulating into a saved .grad"
        )
    if finding.cause == "left":
        told.append(
            f"gradmend.{finding.save.scope.policy}() sees writes only until it is left: the line is read from the source, and the old "
            "value is gone"
        )
    if first is not None:
        if first.site.library is not None:
            lib = first.site.library
            told.append(f"the write is inside a library: {lib.function} at {lib.file}:{lib.line}")
        if first.view and save.view:
            told.append(f"the write lies in {first.view}; the saved tensor is {save.view}")
        if first.times > 1:
            loop = enclosing_loop(first.site.user) if first.site.user else None
            told.append(
                f"that line wrote it {first.times} times between the save and backward()"
                + (f", in the loop on line {loop}" if loop else "")
            )
        if first.quiet and finding.harmful and finding.cause == "write":
            told.append("the write moved no version counter, so PyTorch's own check can't see it")
    if not finding.harmful and finding.changed:
        told.append(f"backward of {save.op} never reads this value: it was kept for its shape alone")
    return tuple(told)


ALSO = "backward() needs as well: "  # of the other saves that one line broke


def two_programs(forward: str, before: str) -> str:
    """An optimizer stepped between a forward and its backward(): what can have been meant."""
    return (
        f"two programs can be meant: compute {forward}, at the new parameters; or {before}, which then applies the gradients "
        "of both backward() calls, unless zero_grad() stands between them or each has its `inputs=`"
    )


def later_words(later: Later, backward: Frame | None) -> tuple[str, tuple[str, ...]]:
    """Of a backward() that goes back into an earlier iteration: what happens, and what to write."""
    names = " and ".join(f"`{n}`" for n in later.names) or "a value"
    cut = later.detached if later.names else "`h = h.detach()`"
    carried = f"cut it off where it is carried over, at the {'end' if later.none else 'start'} of {later.home}: {cut}"
    line = at(later.made, backward) if later.made is not None else "what is made before it"
    anew = (
        f"compute {line} inside {later.home}, each time anew; with a copy of the parameters each step would use the "
        "gradient of the first forward"
    )
    if later.how == "carried":
        note = f"this backward() goes into the iteration before: {names} carries its graph over, past the step in between"
        return note, (carried,)
    if later.how == "once":
        note = f"{line} ran once, before {later.home}: each backward() in it goes through that graph again"
        return note, (anew, _NOT_TRAINED)
    note = f"this backward() goes back to before an earlier {later.run} of {later.home}, past the step in it"
    if later.names:
        return note, (f"if {names} carries the graph over, {carried}", f"if it was made before, {anew}")
    return note, (anew, _NOT_TRAINED)


_NOT_TRAINED = "or, if it should not be trained through (a target, the old value in a ratio), `.detach()` it where it is made"


def after_left(policy: str) -> tuple[str, ...]:
    """Where watch() or heal() was left before the write."""
    then = "it gives the right gradient" if policy == "heal" else "it names the line that writes"
    return (
        f"keep gradmend.{policy}() open until backward() is done, `with gradmend.{policy}():` around both: then {then}",
        "`gradmend explain GM110` tells more",
    )


def helps(rule: str, kind: str) -> tuple[str, ...]:
    """What is always true; the edit itself is found where the story is told (`advice.py`)."""
    if kind == "refused-but-right":
        return (f"gradmend.heal() runs it as it is; `gradmend explain {rule}` tells more",)
    if rule in UNHEALABLE:
        return (
            f"`gradmend explain {rule}` tells more; gradmend.heal() stops here too: the old value is gone",
        )
    return (
        f"`gradmend explain {rule}` tells more; gradmend.heal() runs the program as it is with the right gradient",
    )


# Where nothing kept the old value.
UNHEALABLE = frozenset({"GM110", "GM202", "GM206", "GM207", "GM208", "GM210"})

_STEP_LAST = (
    "call step() after the last backward() that needs these parameters; it then applies the gradients of all of them, unless "
    "zero_grad() stands between them or each has its `inputs=`"
)

# What is true of every such program, where no edit of its lines could be found.
WITHOUT_EDIT: dict[str, str] = {
    "GM104": _STEP_LAST,
    "GM105": "do the update after the last backward() that needs these parameters",
    "GM110": "find the write between the save and backward(); under torch.compile or jit, try the code in eager mode",
    "GM202": "if only the array should change, copy it at the border: `.numpy().copy()`, `torch.from_numpy(a.copy())`; if the "
    "tensor should, change it by an op that returns a new tensor",
    "GM203": _STEP_LAST,
    "GM204": "assign new data after backward()",
    "GM205": "keep it with ctx.save_for_backward, and write out of place",
    "GM206": "work on a copy in forward, or call ctx.mark_dirty(input) and return the input; what backward needs from before the "
    "write is saved as a copy, ctx.save_for_backward(x.clone())",
    "GM207": "return a new tensor instead of writing to the gradient that was given",
    "GM208": "write after backward(), or pass the value as an argument and bind a new tensor instead of writing the old one",
    "GM209": "run the collective on a clone, or after backward()",
    "GM210": "make the edit in the open, by an op that returns a new tensor",
    "GM211": "finish backward() of the eval-mode forward before running in train mode",
}
