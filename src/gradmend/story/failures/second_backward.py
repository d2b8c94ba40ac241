""" "Trying to backward through the graph a second time": where the first was, and what the two share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gradmend.capture.graph.calls import BackwardCall
from gradmend.model import Conflict, Culprit, Frame, Site
from gradmend.story.failures import carried_words, carrier
from gradmend.story.failures.carrier import Found
from gradmend.story.failures.used_up import (
    CreationSite,
    First,
    Shared,
    carried_names,
    find_first,
    find_kept,
    find_shared,
)
from gradmend.story.names import enclosing_loop, op_name

PATTERN = re.compile(r"Trying to backward through the graph a second time")
RULE = "GM131"


def diagnose(
    at: Site,
    *,
    roots: Sequence[Any] = (),
    history: Sequence[BackwardCall] = (),
    creation_site: CreationSite | None = None,
    kept: BackwardCall | None = None,
    healing: bool = False,
) -> Conflict:
    """`at` is where the failing backward was called; the last call in the history that failed is that one. Where graphs
    are kept none fails, and `kept` is the call that went through one again. `healing`: heal() stops here, for want of
    `retain`."""
    failing = kept or next((c for c in reversed(history) if c.outcome != "done"), None)
    earlier = [c for c in history if c is not failing and c.outcome == "done" and not c.retain]
    if at.user is None and failing is not None:
        at = failing.site
    found = carrier.find(roots, earlier, failing, at)
    if kept is None:
        shared, numbers = find_shared(roots, earlier, failing, creation_site)
    else:
        shared, numbers = find_kept(roots, earlier)
    if found is not None:
        inside = bool(numbers.intersection(found.first.roots)) and found.carrier.how != "root"
        return _carried(at, found, inside, healing)
    first = find_first(earlier, failing, shared, numbers)
    return _tell(at, shared, first, healing)


_RETAIN = (
    "to run it as it is, keep every graph: `gradmend run --heal --retain`, or `gradmend.heal(retain=True)`; "
    "each backward then goes through all of it"
)


def _carried(at: Site, found: Found, inside: bool, healing: bool) -> Conflict:
    """The story where the place that held the old graph is known."""
    held, now, before = found.carrier, at.user, found.first.frame
    message, helps = carried_words.words(held, now, before, inside)
    notes = ["backward frees what the graph kept, unless it is called with `retain_graph=True`"]
    made = found.made.user
    if made is not None and held.stored is not None and not _same_place(made, held.stored):
        notes.insert(0, f"the tensor that it holds was made {_at(made, now)}")
    culprits = [(held.stored, held.in_place or "store"), (now, "backward"), (before, "backward")]
    return Conflict(
        rule=RULE,
        kind="error",
        message=message,
        culprits=tuple(dict.fromkeys(Culprit(f.file, f.line, op) for f, op in culprits if f is not None)),
        backward=now,
        notes=tuple(notes),
        help=(*helps, _RETAIN) if healing else helps,
        carrier=held,
    )


def _tell(at: Site, shared: Shared | None, first: First, healing: bool) -> Conflict:
    now, made = at.user, shared.frame if shared else None
    before = first.frames[0] if first.sure and first.frames else None
    culprits = [(made, (op_name(made) if made else "") or (shared.op if shared else ""))]
    culprits += [(f, "backward") for f in (now, *first.frames)]
    notes = ["backward frees what the graph kept, unless it is called with `retain_graph=True`"]
    if first.sure and before is not None and not _same_place(before, now):
        notes.insert(0, f"the first backward through it was {_at(before, now)}")
    elif not first.sure and first.frames:
        lines = ", ".join(_at(f, now) for f in first.frames)
        notes.insert(0, f"the first backward through it was one of these: {lines}")
    if first.same_root:
        message = "this backward starts from a loss whose graph an earlier backward has already used up"
        helps: tuple[str, ...] = (
            "call backward once for each forward",
            "if both passes are wanted, give the first one `retain_graph=True`; their gradients add up",
        )
    elif first.inside:
        message = (
            "this backward starts from a total that contains an earlier loss, whose backward has already run"
        )
        helps = (
            "call backward on the new loss alone: gradients add up by themselves",
            "or call it once, on the total, after the loop",
            "a total that is only printed needs no graph: add `loss.item()` or `loss.detach()` to it",
        )
    elif before is not None and _same_place(before, now):
        message, helps = _again(at, shared)
    elif shared is None and not first.frames:
        message, helps = _anything(now)
    else:
        message, helps = _two_losses(at, shared, before)
    return Conflict(
        rule=RULE,
        kind="error",
        message=message,
        culprits=tuple(dict.fromkeys(Culprit(f.file, f.line, op) for f, op in culprits if f is not None)),
        backward=now,
        notes=tuple(notes),
        help=(*helps, _RETAIN) if healing else helps,
    )


def growing(conflict: Conflict, times: int) -> str:
    """For a graph that is kept, and longer each time that a backward goes through it."""
    where = f" on line {conflict.backward.line} of {conflict.backward.file}" if conflict.backward else ""
    return (
        f"backward(){where} went {times} times through a graph that grows each time, and so do time and memory: "
        f"{conflict.message}. If that is not meant: {conflict.help[0]}"
    )


Words = tuple[str, tuple[str, ...]]


def _anything(now: Frame | None) -> Words:
    """Nothing was recorded: the three ways to get here, the likeliest first."""
    carried = (
        "if something is carried over from the iteration before (a hidden state, a running total), or was made once "
        "before the loop, `detach()` it there, or compute it anew in each iteration"
    )
    others = (
        "if two losses share a part, add them and call backward once, or give the first `retain_graph=True`",
        "if the same loss is meant to go back twice, give the first backward `retain_graph=True`",
    )
    loop = enclosing_loop(now) if now else None
    return (
        "this backward goes through a part of the graph which an earlier backward has already used up",
        (carried, *others) if loop is not None or now is None else (*others, carried),
    )


def _two_losses(at: Site, shared: Shared | None, before: Frame | None) -> Words:
    names = shared.names_at(at) if shared else ()
    line = f" ({_at(before, at.user)})" if before is not None else ""
    detached = " and ".join(f"`{n}.detach()`" for n in names) or "a `detach()`ed copy"
    return (
        f"this backward goes through {_part(at, shared)}, which an earlier backward has already used up",
        (
            "if both losses should train it, add them and call backward once: `(loss_a + loss_b).backward()`",
            f"or give the first backward{line} `retain_graph=True`",
            f"if one of them should not train it, give that one {detached}",
        ),
    )


def _again(at: Site, shared: Shared | None) -> Words:
    """One line ran backward both times: a loop. Was the shared part made in it, or before it?"""
    names = _lasting(shared, at)
    cut = ", ".join(_detached(n, shared) for n in names)
    detach = f"`{', '.join(names)} = {cut}`" if names else "bind its name to its `.detach()`"
    part = _part(at, shared)
    pair = shared.seen_from(at) if shared else None
    loop = enclosing_loop(pair[1]) if pair else None
    if pair is None or loop is None:
        return (
            f"this line runs backward again, and goes through {part}, which it used up the time before",
            (
                f"if it is carried over from the time before, cut it off there: {detach}",
                f"if it was made once for all, cut it off ({detach}), or make it anew each time",
                "if several losses of one forward go back here in turn, add them and call backward once, or give all but "
                "the last `retain_graph=True`",
            ),
        )
    if enclosing_loop(pair[0]) == loop or pair[0].line >= loop:  # in its body, or called by its header
        return (
            f"this backward goes into the iteration before: {part} was carried over, "
            "and the backward of its own iteration has used up its graph",
            (f"cut it off where it is carried over: {detach}",),
        )
    return (
        f"{part} was made before the loop on line {loop}: the first iteration's backward used up its graph, "
        "and the next one needs it again",
        (
            f"if it should not be trained through, cut it off where it is made: {detach}",
            "if it should, compute it anew inside the loop",
        ),
    )


def _detached(name: str, shared: Shared | None) -> str:
    """An LSTM's state is a pair; a cell's `h, c = cell(...)` is named one by one."""
    made = shared.frame if shared else None
    op = (op_name(made) or "") if made is not None else ""
    pair = "lstm" in op.lower() and "cell" not in op.lower()
    if pair and made is not None and len(carried_names(made)) == 1:
        return f"tuple(t.detach() for t in {name})"
    return f"{name}.detach()"


def _lasting(shared: Shared | None, at: Site) -> tuple[str, ...]:
    """The names of the shared part, but those that each iteration binds again: they carry nothing over."""
    names = shared.names_at(at) if shared else ()
    return tuple(n for n in names if not carrier.is_made_again(n, at))


def _part(at: Site, shared: Shared | None) -> str:
    if shared is None:
        return "a part of the graph"
    if shared.names_at(at) and not _lasting(shared, at):
        made = f" at line {shared.frame.line}" if shared.frame is not None else ""
        return f"what was made{made} in an earlier iteration"
    where = f" (made {_at(shared.frame, at.user)})" if shared.frame is not None else ""
    return f"{shared.called(at)}{where}"


def _same_place(a: Frame, b: Frame | None) -> bool:
    return b is not None and (a.file, a.line) == (b.file, b.line)


def _at(frame: Frame, now: Frame | None) -> str:
    if now is not None and frame.file == now.file:
        return f"at line {frame.line}"
    return f"at {frame.file}:{frame.line}"
