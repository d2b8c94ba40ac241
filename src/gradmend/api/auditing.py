"""The audit: is the gradient that this program gets the right one? A yes or a no, by parameter.

Each of the first backward calls runs twice on the same graph: once as PyTorch would run it, which is what the program
goes on with, and once healed, whose gradients are only compared. Both start from equal parameters and equal random
numbers, so that one wrong step does not blur the next.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
import torch.autograd.graph as graph

from gradmend.api.second_pass import random_states, undone
from gradmend.api.watching import Watching
from gradmend.capture.graph.nodes import edges
from gradmend.capture.memory.layouts import has_values
from gradmend.capture.sites import raw_here, resolve
from gradmend.errors import ConflictError, attached
from gradmend.model import Conflict, Frame, Session

_tracing = torch.compiler.is_dynamo_compiling
_transforming = torch._C._are_functorch_transforms_active
_modes, _mode = torch._C._len_torch_dispatch_stack, torch._C._get_dispatch_mode
_Kind = torch._C._TorchDispatchModeKey
_TRACERS = (_Kind.FAKE, _Kind.PROXY, _Kind.FUNCTIONAL)
_of_older_vmap = torch._C._functorch.is_legacy_batchedtensor  # which `is_grads_batched=True` goes through
_IN_TRANSFORM = (
    "a backward runs inside a transform (torch.func, is_grads_batched), where none can be run twice"
)

# Relative to the largest entry: the same ops in the same order, so hardly any rounding.
_SLACK = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@dataclass(slots=True)
class Leaf:
    """What became of one leaf's gradient over the audited calls."""

    name: str
    shape: tuple[int, ...]
    calls: int = 0
    wrong: int = 0
    worst: float = 0.0  # largest difference, relative to the largest entry of the right gradient


@dataclass(slots=True)
class Verdict:
    calls: int = 0
    leaves: dict[str, Leaf] = field(default_factory=dict)
    stopped: list[tuple[Frame | None, Conflict]] = field(
        default_factory=list
    )  # no right gradient to compare with
    unable: list[tuple[Frame | None, str]] = field(default_factory=list)
    session: Session = field(default_factory=Session)

    @property
    def wrong(self) -> list[Leaf]:
        """Leaves whose gradient differs from the right one. Where no right one can be had (an edit behind autograd's
        back, GM210; a checkpoint that finds other values, GM208), `stopped` has the conflict: ask `is_wrong`."""
        return [leaf for leaf in self.leaves.values() if leaf.wrong]

    @property
    def is_wrong(self) -> bool:
        return bool(self.wrong or self.stopped)

    def __str__(self) -> str:
        """In words: which gradients are wrong, by how much, and the story of each cause."""
        from gradmend.api.verdict_words import words

        return words(self)


class Audit:
    """`with Audit(10) as verdict:` compares the first ten backward calls made inside."""

    def __init__(
        self, calls: int, told: Callable[[Verdict], None] | None = None, paranoid: bool = False
    ) -> None:
        self.limit = calls
        self.told = told
        self.verdict = Verdict()
        self._watching = Watching("heal", paranoid=paranoid, aloud=False)
        self._inside = False
        self._inner: list[tuple[Any, Any]] = []
        self._off: Any = None

    def __enter__(self) -> Verdict:
        self.verdict.session = self._watching.__enter__()
        self._watching.scope.refused = None  # the program fails where it fails by itself
        homes: list[Any] = [graph, torch.autograd]
        self._inner = [(home, home._engine_run_backward) for home in homes]
        for home, engine in self._inner:
            home._engine_run_backward = self._wrapped(engine)
        return self.verdict

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for home, engine in self._inner:
            home._engine_run_backward = engine
        if self._off is not None:
            self._off.__exit__(None, None, None)
        self._watching.__exit__(kind, error, trace)

    def _wrapped(self, engine: Callable[..., Any]) -> Callable[..., Any]:
        def run(
            outputs: Any, grads: Any, retain: bool, create: bool, inputs: Any, *rest: Any, **kwargs: Any
        ) -> Any:
            if _tracing() or self._inside or self._off is not None:
                return engine(outputs, grads, retain, create, inputs, *rest, **kwargs)
            if _is_traced(outputs):
                with self._watching.scope.as_pytorch():
                    return engine(outputs, grads, retain, create, inputs, *rest, **kwargs)
            self._inside = True
            try:
                if not (_transforming() or _is_batched(grads)):
                    return self._both(engine, outputs, grads, (retain, create, inputs), rest, kwargs)
                self.verdict.unable.append((resolve(raw_here()).user, _IN_TRANSFORM))
                with self._watching.scope.as_pytorch():
                    return engine(outputs, grads, retain, create, inputs, *rest, **kwargs)
            finally:
                self._inside = False
                self._count()

        return run

    def _count(self) -> None:
        self.verdict.calls += 1
        if self.verdict.calls >= self.limit:
            if self.told is not None:
                self.told(self.verdict)
            self._off = self._watching.scope.as_pytorch()  # from here on the program is on its own
            self._off.__enter__()

    def _both(
        self,
        engine: Callable[..., Any],
        outputs: Any,
        grads: Any,
        flags: tuple[bool, bool, Any],
        rest: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        retain, create, inputs = flags
        frame = resolve(raw_here()).user
        leaves = _leaves(outputs) if kwargs.get("accumulate_grad") else []
        targets = [leaf for leaf, _ in leaves] if not inputs else list(inputs)
        names = _names(targets, sys._getframe(3))
        seeds = tuple(None if g is None else g.detach().clone() for g in grads)
        got: dict[int, torch.Tensor] = {}
        hooks = [_catch(t, i, got) for i, t in enumerate(targets) if kwargs.get("accumulate_grad")]
        fresh = [i for i, leaf in enumerate(targets) if hooks and _is_fresh(leaf)]
        as_it_began = random_states()
        try:
            with self._watching.scope.as_pytorch():
                result = engine(outputs, grads, True, create, inputs, *rest, **kwargs)
        except BaseException as error:
            self.verdict.unable.append((frame, f"this backward fails by itself: {_first_line(error)}"))
            raise
        finally:
            for hook in hooks:
                hook.remove()
        for i in fresh:  # another branch may have written to the memory since it arrived
            if i in got and (now := targets[i].grad) is not None:
                got[i] = now.detach().clone()
        if not kwargs.get("accumulate_grad"):
            got = {i: g for i, g in enumerate(result) if g is not None}
        try:
            with undone(self._watching.scope, as_it_began):
                right = self._healed(engine, outputs, seeds, retain, targets)
                self._compare(targets, names, got, right)  # hooks may have written these, too
        except ConflictError as stop:
            self.verdict.stopped.append((frame, stop.conflict))
        except Exception as error:  # of a hook that runs twice, or of gradients that can't be compared: none of the program's
            conflict = attached(error)
            self.verdict.unable.append((frame, conflict.message if conflict else _first_line(error)))
        return result

    def _healed(
        self, engine: Callable[..., Any], outputs: Any, seeds: Any, retain: bool, targets: list[Any]
    ) -> list[torch.Tensor | None]:
        if not targets:
            return []
        try:
            return list(
                engine(
                    outputs,
                    seeds,
                    retain,
                    False,
                    tuple(targets),
                    allow_unreachable=True,
                    accumulate_grad=False,
                )
            )
        except RuntimeError as error:
            if isinstance(error, ConflictError) or "use_reentrant" not in str(error):
                raise
        # Reentrant checkpoints refuse to be asked for single gradients: let them accumulate, and put .grad back.
        old = [(t, t.grad) for t in targets if isinstance(t, torch.Tensor)]
        got: dict[int, torch.Tensor] = {}
        hooks = [_catch(t, i, got) for i, t in enumerate(targets)]
        try:
            for t, _ in old:
                t.grad = None
            engine(outputs, seeds, retain, False, (), allow_unreachable=True, accumulate_grad=True)
        finally:
            for hook in hooks:
                hook.remove()
            for t, grad in old:
                t.grad = grad
        return [got.get(i) for i in range(len(targets))]

    def _compare(
        self,
        targets: list[Any],
        names: list[str],
        got: dict[int, torch.Tensor],
        right: list[torch.Tensor | None],
    ) -> None:
        gaps = [_gap(got.get(i), one) for i, one in enumerate(right)]
        for target, name, gap in zip(targets, names, gaps, strict=True):
            shape = tuple(target.shape) if isinstance(target, torch.Tensor) else ()
            leaf = self.verdict.leaves.setdefault(name, Leaf(name, shape))
            leaf.calls += 1
            if gap > 0:
                leaf.wrong += 1
                leaf.worst = max(leaf.worst, gap)


def _is_fresh(leaf: Any) -> bool:
    """Whether all of this leaf's `.grad` will be of the backward that starts now."""
    return isinstance(leaf, torch.Tensor) and leaf.grad is None and not leaf._post_accumulate_grad_hooks


def _is_traced(outputs: Any) -> bool:
    """Whether a compiler writes a backward down, or there are no values: no gradient comes of it. The program's own call comes
    with what is made of it."""
    if _modes() and any(_mode(kind) is not None for kind in _TRACERS):
        return True
    return any(isinstance(o, torch.Tensor) and not has_values(o) for o in outputs)


def _is_batched(grads: Any) -> bool:
    return any(isinstance(g, torch.Tensor) and _of_older_vmap(g) for g in grads)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _catch(target: Any, place: int, into: dict[int, torch.Tensor]) -> Any:
    def took(grad: torch.Tensor) -> None:
        into[place] = into[place] + grad.detach() if place in into else grad.detach().clone()

    return target.register_hook(took)


def _gap(got: torch.Tensor | None, right: torch.Tensor | None) -> float:
    """How far apart, relative to the largest entry; 0.0 where they are the same to rounding."""
    if got is None or right is None:
        given = right if got is None else got
        return 0.0 if given is None or not given.detach().any() else float("inf")
    with torch.no_grad():
        a, b = (t.detach().to_dense() if t.layout != torch.strided else t.detach() for t in (got, right))
        if a.shape != b.shape:
            return float("inf")
        slack = _SLACK.get(b.dtype, 1e-5)
        apart = torch.where((a == b) | (a.isnan() & b.isnan()), torch.zeros_like(b), a - b).abs()
        if not apart.numel():
            return 0.0
        most = float(apart.max())
        if most != most or most == float("inf"):
            return float("inf")
        scale = float(b[b.isfinite()].abs().max()) if b.isfinite().any() else 0.0
    gap = most / scale if scale else (float("inf") if most else 0.0)
    return gap if gap > slack else 0.0


def _leaves(outputs: Any) -> list[tuple[torch.Tensor, Any]]:
    found: dict[int, tuple[torch.Tensor, Any]] = {}
    seen: set[Any] = set()
    stack = [getattr(o, "grad_fn", None) or getattr(o, "node", None) for o in outputs]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            found.setdefault(id(leaf), (leaf, node))
        stack.extend(n for n, _ in edges(node))
    return list(found.values())


def _names(targets: list[Any], frame: Any) -> list[str]:
    """What the program calls them, from the variables of the functions that are running."""
    known: dict[int, str] = {}
    while frame is not None:
        for name, value in [*frame.f_locals.items(), *frame.f_globals.items()]:
            if isinstance(value, torch.nn.Module):
                for path, parameter in value.named_parameters():
                    known.setdefault(id(parameter), path if name == "self" else f"{name}.{path}")
            elif isinstance(value, torch.Tensor):
                known.setdefault(id(value), name)
        frame = frame.f_back
    twins: dict[str, int] = {}
    names = []
    for target in targets:
        name = known.get(id(target))
        if name is None:
            kind = f"a leaf {list(getattr(target, 'shape', ()))}"
            twins[kind] = twins.get(kind, 0) + 1
            name = f"{kind} #{twins[kind]}"
        names.append(name)
    return names


def audit(calls: int = 10, *, paranoid: bool = False) -> Audit:
    """Is the gradient that the program gets the right one? Compares the first backward calls made inside.

    >>> import torch, gradmend
    >>> w = torch.ones(3, requires_grad=True)
    >>> with gradmend.audit() as verdict:
    ...     loss = (w * w).sum()
    ...     w.data.mul_(0.9)
    ...     loss.backward()
    tensor([0.9000, 0.9000, 0.9000])
    >>> verdict.is_wrong
    True
    """
    return Audit(calls, paranoid=paranoid)
