"""One op of PyTorch's database, overwritten in every way: what plain PyTorch, watch() and heal() make of it.

A trial is one sample, one tensor of its inputs or outputs, one way to write to it. The op runs on non-leaf inputs, the
tensor is overwritten, then backward runs. Whether backward reads the tensor is found out by experiment: let backward
use overwritten values (hooks that keep no copy switch PyTorch's check off) and see if any gradient changes, or at least
what one node of the graph hands to the next: a factor of zero further down may hide it from the gradient.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import gradmend
from gradmend.capture.ledger.findings import Finding
from gradmend.model import Conflict, Save, Site, TensorInfo
from gradmend.story import linking

WAYS = ("whole", "slice", "view", "data")
VALUES = 7  # other values to try in a tensor's place
Gradients = list[torch.Tensor | None]
Effect = tuple[bool, bool]  # Trial.reads, Trial.used


@dataclass
class Trial:
    op: str
    dtype: str
    sample: int
    target: str  # "input 0", "output 1", "all"
    way: str
    reads: bool  # backward gives another gradient when it sees an overwritten value
    used: bool  # some node of backward computes something else with it, whether or not a gradient tells
    plain: str  # "raises", "right", "silently wrong"
    watch: str  # "raises", "runs"
    heal: str  # "right", "wrong", "stops"
    note: str = ""


class Skip(Exception):
    """Why an op has no trials."""


def trials_of(op: Any, dtype: torch.dtype, samples: int, seed: int) -> Iterator[dict[str, Any]]:
    found = list(op.sample_inputs("cpu", dtype, requires_grad=True))
    random.Random(seed).shuffle(found)
    found.sort(key=_is_empty)  # nothing can be seen in the gradient of an empty tensor
    made, why = 0, "no sample inputs"
    for number, sample in enumerate(found):
        if made == samples:
            return
        try:
            with few_words():
                trials = _of_sample(op, dtype, number, sample)
            yield from (asdict(t) for t in trials)
            made += 1
        except Skip as reason:
            why = str(reason)
    if not made:
        raise Skip(why)


def _is_empty(sample: Any) -> bool:
    given = tree_leaves((sample.input, sample.args, sample.kwargs))
    return any(isinstance(t, torch.Tensor) and t.numel() == 0 for t in given)


def _of_sample(op: Any, dtype: torch.dtype, number: int, sample: Any) -> list[Trial]:
    program = _Program(op, sample)
    right = program.run()
    if any(not _same(a, b) for a, b in zip(right, program.run(), strict=True)):
        raise Skip("its gradients differ from run to run")
    found = []
    for target in program.targets:
        if not program.can_write(target):
            continue
        seen = program.effect(target, range(VALUES))
        for way in WAYS:
            trial = program.trial(target, way, seen, right)
            if trial is not None:
                found.append(Trial(op.formatted_name, str(dtype)[6:], number, target, way, *trial))
    if not found:
        raise Skip("nothing in its inputs and outputs can be written")
    for way in WAYS:
        mine = [t for t in found if t.way == way]
        seen = any(t.reads for t in mine), any(t.used for t in mine)
        trial = program.trial("all", way, seen, right)
        if trial is not None:
            found.append(Trial(op.formatted_name, str(dtype)[6:], number, "all", way, *trial))
    return found


class _Program:
    def __init__(self, op: Any, sample: Any) -> None:
        self._op = op
        self._sample = sample
        self._handed: list[Gradients | None] = []  # by each node of the last backward that was listened to
        self._reached = 0  # tensors that the last attack on all of them overwrote
        given = (sample.input, sample.args, sample.kwargs)
        tensors = [t for t in tree_leaves(given) if isinstance(t, torch.Tensor)]
        if any(t.layout is not torch.strided for t in tensors):
            raise Skip("its inputs are sparse")
        if any(t.numel() > 100_000 for t in tensors):
            raise Skip("its samples are large")
        self._inputs, outs, leaves = self._forward()
        if not leaves:
            raise Skip("no input requires a gradient")
        if any(o.layout is not torch.strided for o in outs):
            raise Skip("its outputs are sparse")
        if not any(o.requires_grad for o in outs):
            raise Skip("no output requires a gradient")
        self.targets = [f"input {i}" for i in range(len(self._inputs))]
        self.targets += [f"output {i}" for i in range(len(outs))]

    def _forward(self) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        """Non-leaf inputs, outputs, leaves."""
        leaves: list[torch.Tensor] = []
        inputs: list[torch.Tensor] = []

        def fresh(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            made = value.detach().clone()
            if value.requires_grad:
                leaves.append(made.requires_grad_())
                made = made.clone()
            inputs.append(made)
            return made

        sample = self._sample
        given, args, kwargs = tree_map(fresh, (sample.input, sample.args, sample.kwargs))
        torch.manual_seed(7)
        result = sample.output_process_fn_grad(self._op(given, *args, **kwargs))
        outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        return inputs, outputs, leaves

    def run(
        self,
        attack: Callable[[list[torch.Tensor], list[torch.Tensor]], None] | None = None,
        listen: bool = False,
    ) -> Gradients:
        inputs, outputs, leaves = self._forward()
        # Roots of our own: writing to an output must not change where backward starts.
        roots = [o * 1 for o in outputs if o.requires_grad]
        self._handed = []
        if listen:
            for node in _nodes(roots):
                at = len(self._handed)
                self._handed.append(None)
                node.register_hook(lambda ins, outs, at=at: self._handed.__setitem__(at, _copies(ins)))
        slopes = [_slope(r) for r in roots]
        if attack is not None:
            attack(inputs, outputs)
        try:
            return list(torch.autograd.grad(roots, leaves, slopes, allow_unused=True))
        except NotImplementedError as error:
            raise Skip("its derivative is not implemented") from error
        except RuntimeError as error:
            if "not implemented" in str(error):
                raise Skip("its derivative is not implemented") from error
            raise

    def _attack(self, target: str, way: str, value: int = 0) -> Callable[[Any, Any], None]:
        def attack(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
            if target == "all":
                self._reached = sum(_overwrite(t, way, _other(t, value)) for t in (*inputs, *outputs))
            else:
                kind, _, number = target.partition(" ")
                t = (inputs if kind == "input" else outputs)[int(number)]
                if not _overwrite(t, way, _other(t, value, [*inputs, *outputs])):
                    raise Skip("can't be written")

        return attack

    def can_write(self, target: str) -> bool:
        try:
            with _unchecked():
                self.run(self._attack(target, "whole"))
        except Skip:
            return False
        except (RuntimeError, IndexError):
            return True  # backward itself stumbles over the overwritten value
        return True

    def effect(self, target: str, values: Iterable[int], way: str = "whole") -> Effect:
        """Does a gradient change when backward sees other values here, and does anything that a node hands on?"""
        with _unchecked():
            right, handed = self.run(listen=True), self._handed
        reads = used = False
        for value in values:
            try:
                with _unchecked():
                    wrong = self.run(self._attack(target, way, value), listen=True)
            except Skip:
                continue
            except (RuntimeError, IndexError):
                return True, True
            reads = reads or not _all_same(right, wrong)
            used = used or reads or not all(map(_all_same, handed, self._handed))
            if reads:
                break
        return reads, used

    def trial(
        self, target: str, way: str, seen: Effect, right: Gradients
    ) -> tuple[bool, str, str, str, str] | None:
        attack = self._attack(target, way)
        try:
            plain = "right" if _all_same(self.run(attack), right) else "silently wrong"
        except Skip:
            return None
        except (RuntimeError, IndexError):
            plain = "raises"
        note, reached = "", self._reached
        try:
            with gradmend.watch():
                self.run(attack)
            watch = "runs"
        except gradmend.ConflictError as error:
            watch = "raises"
            saved = error.conflict.saved
            note = f"{saved.node}.{saved.slot}" if saved else error.conflict.rule
        try:
            with gradmend.heal():
                heal = "right" if _all_same(self.run(attack), right) else "wrong"
        except gradmend.ConflictError as error:
            heal = "stops"
            note = error.conflict.message
        if self._reached < reached:
            raise RuntimeError("a write that plain PyTorch allows fails under heal()")
        if target != "all" and way != "whole" and watch == "runs":
            seen = self.effect(target, [0], way)  # a part of it may lie outside what was saved
        return *seen, plain, watch, heal, note


@contextmanager
def few_words() -> Iterator[None]:
    """Verdicts without their stories: names, excerpts and formulas take most of the time, and are tested elsewhere."""
    whole = linking.link

    def link(finding: Finding) -> Conflict:
        node = finding.node.name() if finding.node is not None else "?"
        save = Save(Site(), "", node, finding.slot, TensorInfo())
        return Conflict("", linking.kind_of(finding), finding.cause, saved=save)

    linking.link = link
    try:
        yield
    finally:
        linking.link = whole


def _unchecked() -> Any:
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t)


def _nodes(roots: list[torch.Tensor]) -> list[Any]:
    """Every node of the graph, in an order that two runs of one program share."""
    seen, order, todo = set(), [], [r.grad_fn for r in roots]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            order.append(node)
            todo += [n for n, _ in node.next_functions]
    return order


def _copies(gradients: Any) -> Gradients:
    # Once read, what a node hands on may be added to in place.
    return [None if g is None or g.layout is not torch.strided else g.detach().clone() for g in gradients]


def _slope(t: torch.Tensor) -> torch.Tensor:
    line = torch.cos(torch.arange(1.0, t.numel() + 1, dtype=torch.float64)).reshape(t.shape)
    return (line * (1 + 0.5j) if t.is_complex() else line).to(t.dtype)


def _overwrite(t: torch.Tensor, way: str, new: torch.Tensor | None) -> bool:
    """Change every element that the way reaches; False when the tensor or the way does not allow it."""
    if new is None or t.numel() == 0 or (way == "slice" and t.dim() == 0):
        return False
    try:
        if way == "slice":
            return _write(t[:1], new[:1])
        if way == "view":
            return _write(_view(t), _view(new))
        return _write(t.data if way == "data" else t, new)
    except RuntimeError:
        return False  # one of several views of what was overwritten before: PyTorch forbids to touch it


def _view(t: torch.Tensor) -> torch.Tensor:
    return t.view(1) if t.dim() == 0 else t.transpose(0, -1)


def _other(t: torch.Tensor, value: int, all_: Sequence[torch.Tensor] = ()) -> torch.Tensor | None:
    """Other values for t, of kind 0 to VALUES - 1; None where there are none of this kind."""
    if t.numel() == 0:
        return None
    with torch.no_grad():
        old = t.detach().clone()
        if value == VALUES - 1:  # backward may ask only whether two tensors are equal
            return next(
                (n for o in all_ if (n := _shaped(o, t)) is not None and not torch.equal(n, old)), None
            )
        if t.is_floating_point() or t.is_complex():
            turned = old.flip(0) if old.dim() else old
            # A NaN shows through a factor of zero, too.
            made = (
                old * -0.5 + 0.75,
                old * 3 + 0.125,
                turned - 2.25,
                old * torch.nan,
                old * 0,
                old * 0 + 1e30,
            )
            return made[value]
        if t.dtype == torch.bool:
            return (~old, old.reshape(-1).roll(1).reshape(old.shape), old & False, old | True, old, old)[
                value
            ]
        # Indices and pivots must stay in the range they had: at other places, all alike, or turned about.
        low, high, flat = old.min(), old.max(), old.reshape(-1)
        places = (
            flat.roll(1),
            flat.roll(2),
            low + high - flat,
            flat.flip(0),
            low.expand_as(flat),
            high.expand_as(flat),
        )
        new = places[value] if value else next((p for p in places if not torch.equal(p, flat)), flat)
        return new.reshape(old.shape).clone()


def _shaped(other: torch.Tensor, t: torch.Tensor) -> torch.Tensor | None:
    """The values that broadcasting sets beside t's."""
    if other.dtype != t.dtype or other is t or not other.numel() or other.dim() > t.dim() + 2:
        return None
    while other.dim() > t.dim():
        other = other[0]
    lead = t.dim() - other.dim()
    for i, size in enumerate(t.shape[lead:]):
        if size == 1:
            other = other.narrow(i, 0, 1)
    try:
        return other.detach().expand(t.shape).clone()
    except RuntimeError:
        return None


def _write(target: torch.Tensor, new: torch.Tensor) -> bool:
    for mode in (nullcontext, torch.no_grad, None):
        try:
            if mode is None:
                target.detach().copy_(new)
            else:
                with mode():
                    target.copy_(new)
            return True
        except RuntimeError:
            continue  # a view of several outputs, an expanded tensor
    return False


def _bits(t: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(t.resolve_conj().resolve_neg()) if t.is_complex() else t


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.allclose(_bits(a), _bits(b), rtol=1e-12, atol=1e-12, equal_nan=True)


def _all_same(a: Gradients | None, b: Gradients | None) -> bool:
    if a is None or b is None:
        return a is b
    return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
