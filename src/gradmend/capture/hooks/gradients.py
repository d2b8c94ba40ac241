"""Gradients written by those who were only handed them: tensor hooks, module hooks, custom backwards.

Autograd passes one and the same tensor to several branches. A hook that scales it in place scales it for those that
have not run yet. Writing is harmless where nobody else holds the gradient, so the holders are counted first: what a
lone gradient counts is measured once, on a tiny graph. heal() gives the hook a copy of its own instead.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch._C import TensorBase as _Base
from torch.utils.hooks import RemovableHandle

from gradmend.capture.edits.arrivals import VIEWS, sibling
from gradmend.capture.graph import calls
from gradmend.capture.graph.incoming import senders
from gradmend.capture.graph.nodes import current, edges
from gradmend.capture.ledger import scopes
from gradmend.capture.ledger.entries import Write, made_write
from gradmend.capture.ledger.findings import SilentFinding
from gradmend.capture.ledger.scopes import Scope
from gradmend.capture.ledger.version_steps import Steps, identity, key_of
from gradmend.capture.memory.layouts import Layout, layout_of, physical
from gradmend.capture.memory.undo import same_bytes
from gradmend.capture.sites import raw_here
from gradmend.capture.taps import hub
from gradmend.capture.unseen import without_grad

_Tensor: Any = torch.Tensor
_count = _Tensor._use_count
_engine: Any = torch.autograd.Variable._execution_engine
_C: Any = torch._C._autograd
_alone: dict[str, int] = {}  # kind of receiver -> holders of a gradient that nobody else has
_measuring: dict[str, int] | None = None
_STORAGE_AND_BASE, _OBJECT_OF_BASE = 2, 1  # the Python objects that we look through, and the base itself
_storage_count = torch._C._storage_Use_Count
# Nodes that send each input a part of the gradient that is its own, and nodes that hand on the gradient they got.
_JOINING = frozenset({"CatBackward0", "StackBackward0"})
_PASSING = frozenset({"AddBackward0", "SubBackward0", "CloneBackward0", "SumBackward0", "SumBackward1"})


def _holders(kind: str, grad: torch.Tensor) -> int:
    """How many others hold this gradient's memory: the very tensor, its base, or another view of that."""
    alone = _alone.get(kind)
    if alone is None:
        return 0
    call = calls.current()
    seeds = call.seeds if call is not None else ()  # the engine holds what backward() was given until the end
    extra = _count(grad) - alone - (identity(grad) in seeds)
    base = grad._base
    if extra > 0 or base is None or not key_of(grad):
        return max(extra, 0)
    views = _storage_count(_Base.untyped_storage(grad)._cdata) - _STORAGE_AND_BASE
    # A view across dtypes refers to its base twice: once for each direction of differentiation.
    refs = views + (base.is_complex() != grad.is_complex())
    whole = _count(base) - _OBJECT_OF_BASE - refs - (identity(base) in seeds)
    return max(whole, 0) or max(views - 1, 0)


def _is_shared(grad: torch.Tensor, given: list[tuple[str, torch.Tensor]]) -> bool:
    """Whether somebody else holds its memory. A module may pass on the very gradient that came: its hook is given it twice."""
    return min(_holders(kind, g) for kind, g in given if g is grad) > 0


def _repeats(grad: torch.Tensor) -> bool:
    """Whether one number stands for several elements, as `sum()` sends it: a write to one changes the others."""
    if not key_of(grad) or grad.layout is not torch.strided:
        return False
    return any(n > 1 and stride == 0 for n, stride in zip(grad.shape, grad.stride(), strict=True))


def _overlaps(grad: torch.Tensor) -> bool:
    """Whether one of the others that hold this memory holds some of the same bytes.

    A view of its whole base overlaps every other view. For a view of a part, the graph decides: `cat` and `stack` send
    each input its own slice, and a gradient that went to several nodes before that is shared.
    """
    base = grad._base
    if base is None or grad.numel() >= base.numel():
        return True
    node = current()
    reached, todo = set(), [] if node is None else [node]
    while todo:
        node = todo.pop()
        reached.add(node)
        for sender in senders(node):
            name = sender.name()
            if name not in _JOINING and _branches(sender) > 1:
                return True
            if (name in _JOINING or name in _PASSING or VIEWS.fullmatch(name)) and sender not in reached:
                todo.append(sender)
    return False


def _branches(node: Any) -> int:
    return sum(below is not None for below, _ in edges(node))


def _is_changed(now: torch.Tensor, was: torch.Tensor) -> bool:
    if not key_of(now) or now.layout is not torch.strided or now.shape != was.shape or now.dtype != was.dtype:
        return True
    return not without_grad(same_bytes, physical(_Base.detach(now)), physical(_Base.detach(was)))


class _Seen:
    """Writes to some gradients while somebody else's code runs."""

    def __init__(self, grads: list[torch.Tensor]) -> None:
        self.grads = grads
        self.steps = Steps(grads)
        self.written: Write | None = None
        self.uniform = True  # each write gave all elements one value, as an expanded gradient allows

    def __call__(self, op: str, targets: Any, how: str) -> None:
        self.steps.hear(op, targets)
        if how != "data":
            return
        for t in targets:
            for g, key in zip(self.grads, self.steps.keys, strict=True):
                if not _same(t, g, key):
                    continue
                self.uniform = self.uniform and op in ("zero_", "fill_") and t.numel() == g.numel()
                if self.written is None:
                    self.written = made_write(0, op, raw_here(), _layout(t))

    def __enter__(self) -> _Seen:
        hub.listen(self)
        return self

    def __exit__(self, *_: object) -> None:
        hub.unlisten(self)
        if self.written is None:
            for i, g in enumerate(self.grads):
                if self.steps.unseen(i):
                    self.written = made_write(0, "", raw_here(), _layout(g))


def _same(t: torch.Tensor, grad: torch.Tensor, key: int) -> bool:
    """Whether `t` lies in the memory of a gradient. A batched one shows none: then it is the tensor itself or a view."""
    if key:
        return key_of(t) == key
    return t is grad or (t._is_view() and t._base is grad)


def _layout(t: torch.Tensor) -> Layout:
    if key_of(t):
        return layout_of(physical(_Base.detach(t)))
    return layout_of(torch.empty(0, dtype=t.dtype))


def _harm(scope: Scope, who: str, written: Write, repeats: bool = False) -> None:
    name, made = ("", ()) if repeats else sibling()
    finding = SilentFinding(
        "GM207",
        [written],
        made=made,
        backward=calls.where(),
        op=name,
        facts={
            "who": who,
            "harmed": f"the branch of {name}" if name else "another branch",
            "repeats": repeats,
        },
        healed=scope.policy == "heal",
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
    if scope is None or scope.plain:
        return call(given), given
    shared = {id(g): g for _, g in grads if _is_shared(g, grads) or _repeats(g)}
    if not shared:
        return call(given), given
    harmful = any(_repeats(g) or _overlaps(g) for g in shared.values())
    others = any(_is_shared(g, grads) for g in shared.values())
    copies = {key: _Base.clone(g) for key, g in shared.items()}
    if scope.policy == "heal":
        given = [copies.get(id(g), g) for g in given]
        watched = [g for g in given if isinstance(g, torch.Tensor)]
    else:
        watched = list(shared.values())
    with _Seen(watched) as seen:
        result = call(given)
    if (
        seen.written is None
        or not harmful
        or not any(_is_changed(shared[key], copies[key]) for key in shared)
    ):
        return result, given
    if others:
        _harm(scope, who, seen.written)
    elif not seen.uniform:
        _harm(scope, who, seen.written, repeats=True)
    return result, given


# --------------------------------------------------------------- custom backwards


def given(call: Any, ctx: Any, args: tuple[Any, ...]) -> Any:
    if type(ctx)._forward_cls.__module__.startswith("torch."):
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
        if torch.compiler.is_compiling():
            return self._hook(*args)
        if self._kind == "tensor":
            result, grads = _run(["tensor"], "a tensor hook", lambda g: self._hook(*g), list(args))
            # A copy that the hook wrote to is what it meant to pass on.
            return grads[0] if result is None and grads[0] is not args[0] else result
        return self._of_module(*args)

    def _of_module(self, module: Any, *groups: Any) -> Any:
        # What another hook has returned may be no tuple.
        flat = [g for group in groups for g in (group if isinstance(group, tuple) else (group,))]
        sizes = [len(group) if isinstance(group, tuple) else 1 for group in groups]

        def grouped(grads: list[Any]) -> list[Any]:
            left = iter(grads)
            parts = [tuple(islice(left, size)) for size in sizes]
            return [p if isinstance(g, tuple) else p[0] for p, g in zip(parts, groups, strict=True)]

        who = f"a backward hook of {type(module).__name__}"
        kinds = [f"{self._kind}{i}" for i, size in enumerate(sizes) for _ in range(size)]
        result, grads = _run(kinds, who, lambda grads: self._hook(module, *grouped(grads)), flat)
        if result is None and any(a is not b for a, b in zip(grads[: sizes[0]], flat, strict=False)):
            return grouped(grads)[0]
        return result


@functools.lru_cache(maxsize=8)  # put on at each arming, and seldom another
def _registering(original: Any, kind: str) -> Any:
    @functools.wraps(original)
    def register(self: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and callable(hook) and not isinstance(hook, _Hook):
            hook = _Hook(hook, kind)
        return original(self, hook, *args, **kwargs)

    return register


_REGISTERING: dict[str, tuple[Any, str]] = {
    "tensor": (torch.Tensor, "register_hook"),
    "module": (torch.nn.Module, "register_full_backward_hook"),
    "module_pre": (torch.nn.Module, "register_full_backward_pre_hook"),
}


def patches() -> Iterator[tuple[Any, str, Any]]:
    for kind, (owner, name) in _REGISTERING.items():
        yield owner, name, _registering(owner.__dict__[name], kind)


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
    if (
        _alone or torch._C._are_functorch_transforms_active()
    ):  # inside one, a backward is another thing: the next time
        return
    _measuring = {}
    ids = RemovableHandle.next_id
    programs = _C._top_saved_tensors_default_hooks(False) is not None
    if programs:  # they shall not see our tensors
        _C._push_saved_tensors_default_hooks(_itself, _itself)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            for kind in ("function", *_REGISTERING):
                _one_backward(kind)
        _alone.update(_measuring)
    finally:
        _measuring = None
        if threading.active_count() == 1:
            RemovableHandle.next_id = ids  # the program's hooks are numbered as they would be without us
        if programs:
            _C._pop_saved_tensors_default_hooks()


def _itself(t: Any) -> Any:
    return t


def _one_backward(kind: str) -> None:
    x = torch.ones(2, requires_grad=True)
    h: Any = x * 2
    # Put where the registering functions would: the program may have wrapped those.
    hooks = OrderedDict({0: _Hook(lambda *_: None, kind)})
    if kind == "tensor":
        h._backward_hooks = hooks
        h.grad_fn._register_hook_dict(h)
    elif kind == "function":
        h = _Probe.apply(h)
    else:
        module = torch.nn.Tanh()  # passes on a gradient of its own making
        module._is_full_backward_hook = True
        setattr(module, "_backward_hooks" if kind == "module" else "_backward_pre_hooks", hooks)
        h = module(h)
    # The engine itself: this backward is nobody's business.
    _engine.run_backward(((h.pow(2) * 1.5).sum(),), (torch.ones(()),), False, False, (), True, True)
