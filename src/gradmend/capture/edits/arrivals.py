"""When backward starts: find the ops that used an edited tensor after the edit, and look at what flows from them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gradmend.capture.edits.edit import Edit, Key, lying_so
from gradmend.capture.edits.live_edits import live, strayed, unseen
from gradmend.capture.graph.incoming import senders
from gradmend.capture.graph.nodes import current, start, walk
from gradmend.capture.graph.reads import packed
from gradmend.capture.ledger.entries import Save
from gradmend.capture.ledger.escapes import fingerprint
from gradmend.capture.ledger.findings import SilentFinding
from gradmend.capture.memory.layouts import layout_of, physical
from gradmend.capture.sites import Raw, raw_here

# Nodes whose output is a view of their input: an edit of the one is an edit of the other.
VIEWS = re.compile(
    r"(View|UnsafeView|ReshapeAlias|Transpose|T|Mt|H|Permute|Select|Slice|Squeeze|Unsqueeze|Expand|Split|SplitWithSizes|"
    r"UnsafeSplit|Unbind|Chunk|Alias|Diagonal|Unfold|AsStrided|Narrow|ViewAsReal|ViewAsComplex)Backward\d+"
)


class _Use(NamedTuple):
    """A node that used the edited tensor, by which of its inputs, and the views in between."""

    node: Any
    place: int
    views: tuple[tuple[Any, int], ...]


def watch(roots: Sequence[Any]) -> list[Any]:
    """Hooks on the uses of edited tensors below these roots; the caller removes them."""
    edits = [e for e in (*live(), *unseen(), *strayed()) if not e.still]
    if not edits:
        return []
    users = _users(roots, min(min(e.key[0], e.number) for e in edits))
    raw = raw_here()
    return [
        use.node.register_hook(_judge(edit, use, raw))
        for edit in edits
        for use in _uses(edit, edit.key, users, ())
    ]


def _users(roots: Sequence[Any], oldest: int) -> dict[Key, list[tuple[Any, int]]]:
    """For each output of a node, who takes it: the graph turned round, no older than the oldest edit."""
    users: dict[Key, list[tuple[Any, int]]] = defaultdict(list)
    for node, below in walk(map(start, roots), into=lambda n: n._sequence_nr() >= oldest):
        for place, (one, nr) in enumerate(below):
            if one is not None:
                users[one._sequence_nr(), one.name(), nr].append((node, place))
    return users


def _uses(
    edit: Edit, key: Key, users: dict[Key, list[tuple[Any, int]]], views: tuple[tuple[Any, int], ...]
) -> list[_Use]:
    found = []
    for node, place in users.get(key, ()):
        number = node._sequence_nr()
        if edit.shows_in(number):
            found.append(_Use(node, place, views))
        elif number < edit.number and VIEWS.fullmatch(
            node.name()
        ):  # a view made before the edit shows it too
            for other in [k for k in users if k[0] == number and k[1] == node.name()]:
                found += _uses(edit, other, users, ((node, other[2]), *views))
    return found


def _judge(edit: Edit, use: _Use, raw: Raw) -> Any:
    def look(grad_inputs: tuple[torch.Tensor | None, ...], _: Any) -> None:
        grad = grad_inputs[use.place] if use.place < len(grad_inputs) else None
        if grad is None or edit.void:
            return
        with torch.no_grad():
            grad = _through(use.views, grad.detach())
            if grad is None:
                return
            if grad.layout != torch.strided:
                grad = grad.to_dense()
            mask = edit.mask().to(grad.device)
            there = grad[mask] if mask.shape == grad.shape else grad
            wrong = int((there != 0).sum())
            if not wrong or (edit.shift is not None and _cancels(edit, grad)):
                return
        error = edit.scope.tell(
            SilentFinding(
                "GM210",
                [edit.written],
                made=site_of(use.node),
                backward=raw,
                tensor=(edit.owner.shape, str(edit.owner.dtype).removeprefix("torch.")),
                op=use.node.name(),
                facts={
                    "edited": int(edit.changed.sum()),
                    "wrong": wrong,
                    "unsure": edit.unsure and not _saw(edit, use),
                },
                escape=edit.written.raw if edit.unsure else (),
            )
        )
        if error is not None:
            raise error

    return look


def _cancels(edit: Edit, grad: torch.Tensor) -> bool:
    """Adding one number to a whole row before a softmax: the gradients of the row add up to nothing."""
    owner, region = edit.owner, edit.region
    shift = edit.shift or ()
    if owner.dtype.itemsize != region.dtype.itemsize or len(shift) > len(region.shape):
        return False
    whole, there = lying_so(owner, region, grad.dtype)
    whole.copy_(grad)
    total = there.sum_to_size(shift)
    return bool(total.abs().max() <= 1e-5 * there.abs().max())


def _saw(edit: Edit, use: _Use) -> bool:
    """Whether the op kept the edited value itself: then the edit came before it."""
    for entry in saves_of(use.node):
        layout = entry.layout or layout_of(physical(entry.handle))
        if entry.print is not None and layout == edit.owner:
            return entry.print == fingerprint(entry.handle)
    return False


def _through(views: tuple[tuple[Any, int], ...], grad: torch.Tensor) -> torch.Tensor | None:
    """The gradient carried back through the views to the edited tensor itself."""
    one: Any = grad
    for node, nr in views:
        count = max(nr + 1, len(getattr(node, "_input_metadata", ())))
        one = node(*[one if i == nr else None for i in range(count)])
        if isinstance(one, tuple):
            one = one[0]
        if one is None:
            return None
    return one


def sibling() -> tuple[str, Raw]:
    """Who else gets the gradient that the node now running was given, by name and line: another input of the node that
    sent it; ("", ()) where none is found."""
    node = current()
    best: tuple[str, Raw] = ("", ())
    for sender in senders(node) if node is not None else ():
        for other, _ in sender.next_functions:
            if other is not None and other is not node:
                best = other.name(), site_of(other)
                if best[1]:
                    return best
    return best


def site_of(node: Any) -> Raw:
    """The line of an op, where it kept a Save of ours."""
    return next((entry.raw for entry in saves_of(node)), ())


def saves_of(node: Any) -> Iterator[Save]:
    return (made for _, _, made in packed(node) if isinstance(made, Save))
