"""What a second backward says where its carrier is known: one message and the edits at the boundary."""

from __future__ import annotations

from gradmend.model import Carrier, Frame

Words = tuple[str, tuple[str, ...]]


def words(held: Carrier, now: Frame | None, before: Frame | None, inside: bool) -> Words:
    """`inside`: an earlier loss is a part of the failing one, a running total."""
    name, stored = f"`{held.name}`", _at(held.stored, now)
    others = [path for path, _ in held.places[1:]]
    if others and held.how in ("carried", "once"):
        name = ", ".join([name, *(f"`{p}`" for p in others)])
    used = (
        f"the backward {_at(before, now)} has used up"
        if before is not None
        else "an earlier backward used up"
    )
    if held.how == "root":
        return (
            f"this backward starts from {name} (stored {stored}), whose graph {used}",
            (
                "call backward once for each forward",
                "if both passes are wanted, give the first one `retain_graph=True`; their gradients add up",
            ),
        )
    if inside:
        return (
            f"{name} (stored {stored}) is a total that contains an earlier loss, whose graph {used}",
            (
                "call backward on the new loss alone: gradients add up by themselves",
                "or call it once, on the total, after the loop",
                "a total that is only printed needs no graph: add `loss.item()` or `loss.detach()` to it",
            ),
        )
    if held.how == "in-place":
        return _in_place(held, stored, used)
    if held.how == "collected":
        return (
            f"{name} {stored} keeps tensors with their graph, which {used}; this backward goes into it again",
            (
                "keep what later iterations read without its graph: add its `.detach()`",
                "to train through all of them, add the losses and call backward once, before the optimizer steps",
            ),
        )
    if held.how == "carried":
        return (
            f"this backward goes into the iteration before: {name} (stored {stored}) "
            f"{'carry' if others else 'carries'} over the graph that {used}",
            (_cut(held, now), _WHOLE),
        )
    if held.how == "once":
        return _once(held, stored, used)
    return (
        f"this backward goes through {name} (stored {stored}), whose graph {used}",
        (
            "if both losses should train it, add them and call backward once: `(loss_a + loss_b).backward()`",
            f"or give the first backward ({_at(before, now)}) `retain_graph=True`, where no optimizer steps in between",
            f"if one of them should not train it, give that one `{_plain(held)}.detach()`",
        ),
    )


_WHOLE = "or, to train through all of them, add the losses and call backward once, before the optimizer steps"


def _cut(held: Carrier, now: Frame | None) -> str:
    where = f"after the backward {_at(now, now)}" if now is not None else "after each backward"
    if held.places:
        return f"cut it once where it crosses from one backward to the next, {where}: `{held.detached}`"
    return (
        f"cut `{_plain(held)}` once where it crosses from one backward to the next: `{_plain(held)}.detach()`"
    )


def _plain(held: Carrier) -> str:
    return held.places[0][0] if held.places else held.name


def _in_place(held: Carrier, stored: str, used: str) -> Words:
    if held.in_place == "__setitem__":
        return (
            f"the assignment to `{held.name}` {stored} keeps the old graph of what it writes to, which {used}",
            ("bind a new tensor in its place, or `detach_()` it before the assignment",),
        )
    call = f"{held.name}.{held.in_place}(...)" if held.in_place != "zero_" else f"{held.name}.zero_()"
    new = {
        "zero_": f"`{held.name} = torch.zeros_like({held.name})`",
        "copy_": f"`{held.name} = source.clone()`",
    }.get(held.in_place, "a new tensor")
    return (
        f"`{call}` {stored} keeps the old graph: it writes new values and cuts nothing, and {used}",
        (f"cut it there: `{call}.detach_()`", f"or bind a new tensor: {new}"),
    )


def _once(held: Carrier, stored: str, used: str) -> Words:
    again = "if what made it is trained, compute it again for each backward"
    if held.cached:
        again += f": without `@{held.cached.partition('(')[0]}`"
    return (
        f"`{held.name}` (stored {stored}) was made once, and {used} its graph; this backward needs it again",
        (
            again,
            "if it should not be trained through, store its `.detach()`",
            "where nothing that made it is updated in between, `retain_graph=True` keeps its graph",
        ),
    )


def _at(frame: Frame | None, now: Frame | None) -> str:
    if frame is None:
        return "earlier"
    if now is not None and frame.file == now.file:
        return f"at line {frame.line}"
    return f"at {frame.file}:{frame.line}"
