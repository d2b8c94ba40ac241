"""One op, one sample: which of the tensors its nodes saved do they read in backward?

A node reads a slot when other values in that slot change what the node hands on (its own gradients, seen by a
node hook, so that nothing downstream can mask the change), or make it raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from gradmend.capture.graph.reads import features_of, slot_of

Tensor = torch.Tensor
FEW = 4  # outputs to drive one by one


class Handle:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()
        self.replaced: Tensor | None = None
        self.slot: str | None = None
        self.node: Any = None


def corrupted(t: Tensor, neighbours: list[Tensor]) -> Iterator[Tensor]:
    """Other values in t's place: as different as can be, indices kept within the range they had.

    A neighbour's values are among them: a backward may ask only whether two saved tensors are equal.
    """
    if t.layout != torch.strided or t.numel() == 0:
        return
    made: list[Tensor] = []
    if t.dtype == torch.bool:
        made = [~t, torch.zeros_like(t), torch.ones_like(t)]
    elif t.is_floating_point() or t.is_complex():
        noise = torch.randn(t.shape, dtype=t.dtype)
        made = [-t + 0.3 * noise, noise * 10, torch.zeros_like(t), torch.full_like(t, float("nan"))]
        if t.is_floating_point():
            made.append(noise.abs() + 0.1)
    else:
        wide, top = t.long(), int(t.max())
        made = [
            torch.zeros_like(t),
            torch.full_like(t, top),
            (wide + 1) % (abs(top) + 1),
            t.flatten().flip(0).view(t.shape),
        ]
    made += [n for n in neighbours if n.shape == t.shape and n.dtype == t.dtype]
    for other in made:
        other = torch.empty_like(t).copy_(other)  # kernels may assume the strides that were saved
        if not _same(other, t):
            yield other


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if a.layout != b.layout:
        return False
    if a.layout != torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if a.is_floating_point():
        return bool(torch.equal(a.nan_to_num(7e7), b.nan_to_num(7e7)))
    return bool(torch.equal(a, b))


def _all_same(a: list[Any] | None, b: list[Any] | None) -> bool:
    return a is not None and b is not None and len(a) == len(b) and all(map(_same, a, b))


def _nodes(outputs: list[Tensor]) -> list[Any]:
    seen, order, todo = set(), [], [o.grad_fn for o in outputs]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        order.append(node)
        todo += [n for n, _ in node.next_functions]
    return order


# What a node handed on, and which of its outputs a gradient arrived for that is not all zeros.
Noted = tuple[list[Any], list[bool]]
_NOTHING: Noted = ([], [])


class Trial:
    """One forward, and as many backwards over its graph as there are things to try."""

    def __init__(self, fn: Callable[[], Any], leaves: list[Tensor]) -> None:
        self.handles: list[Handle] = []
        self.leaves = leaves

        def pack(t: Tensor) -> Handle:
            self.handles.append(Handle(t))
            return self.handles[-1]

        with torch.autograd.graph.saved_tensors_hooks(pack, self._unpack):
            out = fn()
        self.outputs = [o for o in tree_flatten(out)[0] if isinstance(o, Tensor) and o.requires_grad]
        self.nodes = _nodes(self.outputs)
        self.seen: dict[Any, Noted] = {}
        for node in self.nodes:
            node.register_hook(lambda ins, outs, node=node: self._note(node, ins, outs))
        torch.manual_seed(0)
        self.cotangents = [torch.randn_like(o).requires_grad_() for o in self.outputs]
        self._every = list(self.outputs), list(self.cotangents)

    def drives(self) -> Iterator[None]:
        """Backward from all outputs, then from each one alone: an op of several may read less for some of them."""
        outputs, cotangents = self._every
        yield
        if 1 < len(outputs) <= FEW:
            for i in range(len(outputs)):
                self.outputs, self.cotangents = outputs[i : i + 1], cotangents[i : i + 1]
                yield

    def _unpack(self, handle: Handle) -> Tensor:
        if handle.slot is None:
            handle.node = torch._C._current_autograd_node()
            handle.slot = slot_of(handle.node, handle) or ""
        return handle.tensor if handle.replaced is None else handle.replaced

    def _note(self, node: Any, grad_inputs: Any, grad_outputs: Any) -> None:
        moved = [g is not None and g.numel() > 0 and bool((g != 0).any()) for g in grad_outputs]
        self.seen[node] = ([None if g is None else g.detach().clone() for g in grad_inputs], moved)

    def once(self) -> dict[Any, Noted]:
        self.seen = {}
        torch.autograd.grad(self.outputs, self.leaves, self.cotangents, retain_graph=True, allow_unused=True)
        seen, self.seen = self.seen, {}  # a later backward must not write into this answer
        return seen

    def twice(self) -> list[Any] | None:
        """The gradients of a random mixture of the gradients; None where PyTorch has none."""
        try:
            first = torch.autograd.grad(
                self.outputs, self.leaves, self.cotangents, create_graph=True, allow_unused=True
            )
            live = [g for g in first if g is not None and g.requires_grad]
            if not live:
                return []
            torch.manual_seed(1)
            weights = [torch.randn_like(g) for g in live]
            second = torch.autograd.grad(
                live, [*self.leaves, *self.cotangents], weights, retain_graph=True, allow_unused=True
            )
            return list(second)
        except RuntimeError:
            return None


def observe(fn: Callable[[], Any], leaves: list[Tensor]) -> Iterator[dict[str, Any]]:
    """For each saved tensor of the graph that fn() makes: {node, slot, features, arrived, zero, read, read_twice}."""
    trial = Trial(fn, leaves)
    if not trial.outputs or not trial.handles:
        return
    for _ in trial.drives():
        yield from _observed(trial)


def _observed(trial: Trial) -> Iterator[dict[str, Any]]:
    base, again = trial.once(), trial.once()
    twice, twice_again = trial.twice(), trial.twice()
    if not _all_same(twice, twice_again):
        twice = None
    for handle in trial.handles:
        if not handle.slot or handle.node not in base:
            continue
        (want, arrived), (repeat, _) = base[handle.node], again.get(handle.node, _NOTHING)
        zero = not any(g is not None and g.layout == torch.strided and bool((g != 0).any()) for g in want)
        if not any(arrived) or not _all_same(want, repeat):
            continue  # a gradient that is never the same twice shows nothing
        if zero and not handle.tensor.is_floating_point() and not handle.tensor.is_complex():
            continue  # only a NaN shows through a factor of zero
        near = [h for h in trial.handles if h.node is handle.node and h is not handle]
        others = list(corrupted(handle.tensor, [h.tensor for h in near]))
        if not others:
            continue
        read = _changes(trial, handle, others, want) or any(
            _changes(trial, handle, others, None) for _ in _settings(near)
        )
        read_twice = None
        if twice is not None and not read:
            read_twice = any(not _all_same(twice, trial.twice()) for _ in _replacing(handle, others))
        yield {
            "node": handle.node.name(),
            "slot": handle.slot.partition("[")[0],
            "features": features_of(handle.node),
            "arrived": arrived,
            "zero": zero,
            "read": read,
            "read_twice": read_twice,
        }


def _replacing(handle: Handle, others: list[Tensor]) -> Iterator[None]:
    try:
        for handle.replaced in others:
            yield
    finally:
        handle.replaced = None


def _changes(trial: Trial, handle: Handle, others: list[Tensor], want: list[Any] | None) -> bool:
    """Do other values in this slot change the node's gradients, or make it raise?"""
    try:
        if want is None:
            want = trial.once().get(handle.node, _NOTHING)[0]
    except Exception:
        return False  # this setting of its neighbours is one the node refuses: it shows nothing
    try:
        return any(
            not _all_same(want, trial.once().get(handle.node, _NOTHING)[0])
            for _ in _replacing(handle, others)
        )
    except Exception:
        return True


def _settings(near: list[Handle]) -> Iterator[None]:
    """The node's other float tensors at values where backwards like to branch: zero, minus one, NaN."""
    floats = [h for h in near if h.tensor.is_floating_point() and h.tensor.layout == torch.strided]
    if not floats:
        return
    try:
        for value in (0.0, -1.0, float("nan")):
            for h in floats:
                h.replaced = torch.full_like(h.tensor, value)
            yield
    finally:
        for h in floats:
            h.replaced = None


def variants(sample_input: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any, Any, list[Tensor]]]:
    """The sample with all its gradients asked for, and with each one alone."""
    flat = [t for t in tree_flatten((sample_input, args, kwargs))[0] if isinstance(t, Tensor)]
    wanted = [i for i, t in enumerate(flat) if t.requires_grad]
    for keep in [wanted, *([i] for i in wanted if len(wanted) > 1)]:
        at, leaves = iter(range(len(flat))), []

        def renew(
            t: Any, at: Iterator[int] = at, keep: list[int] = keep, leaves: list[Tensor] = leaves
        ) -> Any:
            if not isinstance(t, Tensor):
                return t
            fresh = t.detach().clone()
            if next(at) in keep:
                leaves.append(fresh.requires_grad_())
            return fresh

        new_input, new_args, new_kwargs = tree_map(renew, (sample_input, args, kwargs))
        yield new_input, new_args, new_kwargs, leaves
