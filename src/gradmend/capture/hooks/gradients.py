"""Gradients written by those who were only handed them: tensor hooks, module hooks, custom backwards.

Autograd passes one and the same tensor to several branches. A hook that scales it in place scales it for those that
have not run yet. Writing is harmless where nobody else holds the gradient, so the holders are counted first: what a
lone gradient counts is measured once, on a tiny graph. heal() gives the hook a copy of its own instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._C import TensorBase as _Base

from gradmend.capture.graph import calls
from gradmend.capture.ledger import scopes
from gradmend.capture.ledger.entries import Write
from gradmend.capture.ledger.findings import SilentFinding
from gradmend.capture.ledger.version_steps import Steps, identity, key_of
from gradmend.capture.memory.layouts import Layout, layout_of, physical
from gradmend.capture.sites import raw_here
from gradmend.capture.taps import hub

_Tensor: Any = torch.Tensor
_count = _Tensor._use_count
_engine: Any = torch.autograd.Variable._execution_engine
_on = False
_alone: dict[str, int] = {}  # kind of receiver -> holders of a gradient that nobody else has
_measuring: dict[str, int] | None = None
_HOLDERS_OF_BASE = 2  # its view, and the Python object that we look through


def _holders(kind: str, grad: torch.Tensor) -> int:
    """How many hold this gradient beside the one that is given it now."""
    base = _alone.get(kind)
    if base is None:
        return 0
    call = calls.current()
    seeds = call.seeds if call is not None else ()
    # The engine holds the gradient that backward() itself was given until the end.
    key = identity(grad)
    extra = _count(grad) - base - (1 if key in seeds else 0)
    if extra <= 0 and grad._is_view() and grad._base is not None and grad._base.numel() == grad.numel():
        extra = _count(grad._base) - _HOLDERS_OF_BASE - (1 if key in seeds else 0)
    return max(extra, 0)


class _Seen:
    """Writes to some gradients while somebody else's code runs."""

    def __init__(self, grads: list[torch.Tensor]) -> None:
        self.grads = grads
        self.steps = Steps(grads)
        self.written: Write | None = None

    def __call__(self, op: str, targets: Any, how: str) -> None:
        if self.written is not None:
            return
        self.steps.hear(op, targets)
        if how != "data":
            return
        for t in targets:
            if any(_same(t, g, key) for g, key in zip(self.grads, self.steps.keys, strict=True)):
                self.written = Write(0, op, raw_here(), _layout(t))
                return

    def __enter__(self) -> _Seen:
        hub.listen(self)
        return self

    def __exit__(self, *_: object) -> None:
        hub.unlisten(self)
        if self.written is None:
            for i, g in enumerate(self.grads):
                if self.steps.unseen(i):
                    self.written = Write(0, "", raw_here(), _layout(g))


def _same(t: torch.Tensor, grad: torch.Tensor, key: int) -> bool:
    """Whether `t` lies in the memory of a gradient. A batched one shows none: then it is the tensor itself or a view."""
    if key:
        return key_of(t) == key
    return t is grad or (t._is_view() and t._base is grad)


def _layout(t: torch.Tensor) -> Layout:
    if key_of(t):
        return layout_of(physical(_Base.detach(t)))
    return layout_of(torch.empty(0, dtype=t.dtype))


def _harm(who: str, written: Write, healed: bool) -> None:
    from gradmend.capture.edits.arrivals import sibling

    scope = scopes.current()
    if scope is None:
        return
    name, made = sibling()
    finding = SilentFinding(
        "GM207",
        [written],
        made=made,
        backward=calls.where(),
        op=name,
        facts={"who": who, "harmed": f"the branch of {name}" if name else "another branch"},
        healed=healed,
    )
    error = scope.tell(finding)
    if error is not None:
        raise error


def _run(
    kinds: list[str], who: str, call: Callable[[list[Any]], Any], given: list[Any]
) -> tuple[Any, list[Any]]:
    """Let somebody else's code have these gradients; tell of writes to one that others hold too."""
    grads = [(k, g) for k, g in zip(kinds, given, strict=True) if isinstance(g, torch.Tensor)]
    if _measuring is not None:
        for kind, g in grads:
            _measuring[kind] = _count(g)
        return call(given), given
    scope = scopes.current()
    unheard = scope is not None and scope.plain
    shared = [] if unheard else [g for kind, g in grads if _holders(kind, g) > 0]
    if not shared:
        return call(given), given
    if scope is not None and scope.policy == "heal":
        given = [_Base.clone(g) if any(g is s for s in shared) else g for g in given]
        shared = [g for g in given if isinstance(g, torch.Tensor)]
    with _Seen(shared) as seen:
        result = call(given)
    if seen.written is not None:
        _harm(who, seen.written, scope is not None and scope.policy == "heal")
    return result, given


# --------------------------------------------------------------- custom backwards


def given(call: Any, ctx: Any, args: tuple[Any, ...]) -> Any:
    if (not _on and _measuring is None) or type(ctx)._forward_cls.__module__.startswith("torch."):
        return call(ctx, *args)  # torch's own Functions write nothing they were given
    who = f"the backward of {type(ctx).__name__.removesuffix('Backward')}"
    return _run(["function"] * len(args), who, lambda grads: call(ctx, *grads), list(args))[0]


# -------------------------------------------------------------------------- hooks


class _Hook:
    """A hook as it was, looked after. An object, so that a module with hooks can still be pickled."""

    def __init__(self, hook: Callable[..., Any], kind: str) -> None:
        functools.update_wrapper(self, hook)
        self._hook = hook
        self._kind = kind

    def __call__(self, *args: Any) -> Any:
        if (not _on and _measuring is None) or torch.compiler.is_compiling():
            return self._hook(*args)
        if self._kind == "tensor":
            result, grads = _run(["tensor"], "a tensor hook", lambda g: self._hook(*g), list(args))
            # A copy that the hook wrote to is what it meant to pass on.
            return grads[0] if result is None and grads[0] is not args[0] else result
        return self._of_module(*args)

    def _of_module(self, module: Any, *groups: Any) -> Any:
        flat = [g for group in groups for g in (group if isinstance(group, tuple) else (group,))]
        sizes = [len(group) if isinstance(group, tuple) else 1 for group in groups]

        def call(grads: list[Any]) -> Any:
            parts, at = [], 0
            for group, size in zip(groups, sizes, strict=True):
                part = tuple(grads[at : at + size])
                parts.append(part if isinstance(group, tuple) else part[0])
                at += size
            return self._hook(module, *parts)

        who = f"a backward hook of {type(module).__name__}"
        kinds = [f"{self._kind}{i}" for i, size in enumerate(sizes) for _ in range(size)]
        result, grads = _run(kinds, who, call, flat)
        first = grads[: sizes[0]]
        if result is None and any(a is not b for a, b in zip(first, flat, strict=False)):
            return tuple(first) if isinstance(groups[0], tuple) else first[0]
        return result


def _registering(original: Any, kind: str) -> Any:
    @functools.wraps(original)
    def register(self: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and callable(hook) and not isinstance(hook, _Hook):
            hook = _Hook(hook, kind)
        return original(self, hook, *args, **kwargs)

    return register


_HOMES: tuple[tuple[Any, str, str], ...] = (
    (torch.Tensor, "register_hook", "tensor"),
    (torch.nn.Module, "register_full_backward_hook", "module"),
    (torch.nn.Module, "register_full_backward_pre_hook", "module_pre"),
)
_plain = [(owner, name, owner.__dict__[name]) for owner, name, _ in _HOMES]


def arm() -> None:
    global _on
    for owner, name, kind in _HOMES:
        setattr(owner, name, _registering(owner.__dict__[name], kind))
    _on = True


def disarm() -> None:
    global _on
    _on = False
    for owner, name, original in _plain:
        setattr(owner, name, original)


# ---------------------------------------------------------------------- measuring


class _Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 1


def measure() -> None:
    """Count the holders of gradients that have one owner, once. Custom Functions must be armed already."""
    global _measuring
    if _alone:
        return
    _measuring = {}
    try:
        with torch.enable_grad():
            for kind in ("tensor", "function", "module", "module_pre"):
                _one_backward(kind)
        _alone.update(_measuring)
    finally:
        _measuring = None


def _one_backward(kind: str) -> None:
    x = torch.ones(2, requires_grad=True)
    h = x * 2
    if kind == "tensor":
        h.register_hook(_Hook(_nothing, kind))
    elif kind == "function":
        h = _Probe.apply(h)
    else:
        module = torch.nn.Tanh()  # passes on a gradient of its own making
        register = (
            "register_full_backward_pre_hook" if kind == "module_pre" else "register_full_backward_hook"
        )
        getattr(module, register)(_Hook(_nothing, kind))
        h = module(h)
    # The engine itself: this backward is nobody's business.
    _engine.run_backward(((h.pow(2) * 1.5).sum(),), (torch.ones(()),), False, False, (), True, True)


def _nothing(*_: Any) -> None:
    return None
