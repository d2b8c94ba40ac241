"""Checkpointed regions run twice: what the second run reads must be what the first one read.

While a region runs the first time, a torch-function mode enters each tensor from outside that it reads into the
ledger (its positional arguments are checkpoint's own Saves). Before it runs again each of them is asked for: heal()
can't help here, since a forward reads the value where it lies. The second run is read too, for tensors that took
the place of others and for numbers that changed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch
import torch.utils.checkpoint as _checkpoint
from torch.overrides import TorchFunctionMode

from gradmend.capture.graph import calls
from gradmend.capture.hooks import saved_tensors
from gradmend.capture.ledger import scopes
from gradmend.capture.ledger.findings import SilentFinding
from gradmend.capture.ledger.scopes import Scope
from gradmend.capture.ledger.unguarded import Read
from gradmend.capture.ledger.version_steps import key_of
from gradmend.capture.memory.undo import same_bytes
from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.taps import hub
from gradmend.capture.taps.homes import OPERATORS
from gradmend.capture.unseen import unseen, without_grad
from gradmend.compat import checkpoints as compat
from gradmend.folder import OURS, TAPS

_Base: Any = torch._C.TensorBase
_Function: Any = _checkpoint.CheckpointFunction
_compiling = torch.compiler.is_compiling

# They look at a tensor's shape or type and at none of its values.
_SHAPE_ONLY = frozenset(
    "size dim numel nelement ndimension stride is_contiguous zeros_like ones_like empty_like full_like rand_like randn_like "
    "randint_like new_zeros new_ones new_empty new_full new_tensor is_floating_point is_complex is_signed data_ptr __len__ "
    "element_size storage_offset get_device untyped_storage __get__ __set__ __delete__ register_hook retain_grad is_shared "
    "requires_grad_ is_pinned has_names __hash__ result_type is_same_size".split()
)
_SHAPE_OF_SECOND = frozenset("view_as expand_as reshape_as type_as to".split())
_OVERWRITING = frozenset(
    "copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_".split()
)
_MODES = "_set_"  # `_set_grad_enabled` and its like: a reentrant region runs first without grad, then with it
# Where a layer counts its batches: with `momentum=None` the count makes the running statistics, and nothing else.
_BATCH_NORM = torch.nn.BatchNorm1d.forward.__code__.co_filename
_NORMS = {"batch_norm": "training", "instance_norm": "use_input_stats"}
_IN_PLACE = frozenset((*OPERATORS, "__setitem__"))

_At = tuple[str, int, int]  # an op, which call of it, which argument


class Region:
    """One call of checkpoint(): what its first run read, drew and computed with."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.raw = raw_here()
        self.reads: dict[tuple[Any, ...], Read] = {}
        self.places: dict[_At, Read] = {}
        self.numbers: list[tuple[str, tuple[Any, ...], Raw]] = []
        self.training: dict[tuple[str, int], tuple[bool, Raw]] = {}  # of norms, and which call of them
        self.rng = _random_state()
        self.draws = False
        self.generators: dict[
            torch.Generator, bytes
        ] = {}  # of the program's own: the state that the first run found

    def finish(self) -> None:
        self.draws = _random_state() != self.rng

    def check(self) -> None:
        """Before the second run: is everything as it was?"""
        if self.draws and _random_state() != self.rng:
            self.stop("rng", self.raw, calls.where())
        for read in self.reads.values():
            hub.LEDGER.ask(read)

    def stop(self, why: str, made: Raw, backward: Raw, first: str = "", then: str = "", **more: Any) -> None:
        facts = {"why": why, "first": first, "then": then}
        finding = SilentFinding("GM208", [], made=made, backward=backward, facts=facts, **more)
        error = self.scope.tell(finding)
        if error is not None:
            raise error


def _random_state() -> bytes:
    """Of the CPU's generator, and of the accelerator's where one is in use. Both lie in the host's memory."""
    with unseen():  # a mode of the program's shall not see us look
        state = bytes(_Base.numpy(torch.get_rng_state()))
    device = torch.accelerator.current_accelerator()
    if device is None:
        return state
    module = torch.get_device_module(device)
    if not getattr(module, "is_initialized", bool)() or not hasattr(module, "get_rng_state"):
        return state
    return state + bytes(_Base.numpy(module.get_rng_state()))


def _state_of(generator: torch.Generator) -> bytes:
    with unseen():
        return bytes(_Base.numpy(generator.get_state()))


def _tensors(args: Any, place: int = 0) -> Iterator[tuple[int, torch.Tensor]]:
    for i, a in enumerate(args, place):
        if isinstance(a, torch.Tensor):
            yield i, a
        elif isinstance(a, (list, tuple)):
            yield from _tensors(a, i)


def _spot(t: torch.Tensor) -> tuple[Any, ...]:
    return key_of(t), t.storage_offset(), t.shape, t.stride()


def _is_ours(file: str) -> bool:
    """The ledger's own looks at memory are no reads of the region; what a tap passes on is."""
    return file.startswith(OURS) and not file.startswith(TAPS)


class _Reader(TorchFunctionMode):
    def __init__(self, region: Region, inputs: Sequence[Any] = ()) -> None:
        super().__init__()
        self.region = region
        # Storages that are no matter of ours: checkpoint itself keeps the inputs, and the region made the others.
        self.own = {key_of(a) for a in inputs if isinstance(a, torch.Tensor)}
        self.calls: Counter[str] = Counter()
        self.changed: dict[int, list[Read]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        file = sys._getframe(1).f_code.co_filename
        if (
            name in _SHAPE_ONLY
            or name.startswith(_MODES)
            or _compiling()
            or _is_ours(file)
            or (name == "__float__" and file == _BATCH_NORM)
        ):
            return func(*args, **kwargs)
        if (generator := kwargs.get("generator")) is not None:
            self.generator(generator)
        found = [*_tensors(args), *_tensors(kwargs.values(), 1000)]
        if name in _SHAPE_OF_SECOND:
            found = found[:1]
        self.calls[name] += 1
        which = self.calls[name]
        if name in _NORMS:  # its other numbers may change from call to call, and do no harm
            self.training(name, which, _is_training(name, args, kwargs))
        else:
            self.number(name, tuple(a for a in (*args, *kwargs.values()) if type(a) in (float, int, bool)))
        written = _written(name, args, kwargs)
        overwritten = name in _OVERWRITING or (name == "__setitem__" and _is_all(args[1]))
        if overwritten:  # from here on its value is the region's own doing
            self.own |= {key_of(t) for t in written if t.nbytes == _Base.untyped_storage(t).nbytes()}
        counted = [] if overwritten else self.before_write(name, written)
        # The tap that led here asked before these Saves were made.
        token = hub.LEDGER.before(name, counted) if counted else None
        made: set[int] = set()
        try:
            out = func(*args, **kwargs)
            made = {key_of(t) for _, t in _tensors((out,))}
        finally:  # a recomputation is broken off at the last tensor it saves, inside that op
            if token is not None:
                hub.LEDGER.after(token)
            for place, t in found:
                # What it made a view of, it did not read.
                if not any(t is w for w in written) and (key_of(t) not in made or written):
                    self.read((name, which, place), t)
        self.own |= made - {key_of(t) for _, t in found}
        return out

    def before_write(self, name: str, written: list[torch.Tensor]) -> list[torch.Tensor]:
        """A region may count calls in a buffer: what it changed matters only if it reads it afterwards."""
        counted = []
        for t in written:
            if self.is_outer(t):
                entry = self.enter(name, t)
                if entry is not None:
                    self.changed.setdefault(key_of(t), []).append(entry)
                    counted.append(t)
        return counted

    def is_outer(self, t: torch.Tensor) -> bool:
        key = key_of(t)
        return key != 0 and key not in self.own

    def enter(self, name: str, t: torch.Tensor) -> Read | None:
        try:
            entry = hub.LEDGER.save(t, self.region.scope, raw_here(), Read)
        except RuntimeError:
            return None
        assert isinstance(entry, Read)
        entry.op, entry.region = name, self.region.raw
        return entry

    def read(self, at: _At, t: torch.Tensor) -> None:
        if not self.is_outer(t):
            return
        region, key = self.region, key_of(t)
        if key in self.changed:
            for entry in self.changed.pop(key):
                region.reads[key, "written", id(entry)] = entry
            self.own.add(key)  # from here on its value is the region's own doing
            return
        spot = _spot(t)
        read = region.reads.get(spot) or self.enter(at[0], t)
        if read is not None:
            region.reads[spot] = region.places[at] = read

    def number(self, name: str, now: tuple[Any, ...]) -> None:
        self.region.numbers.append((name, now, raw_here()))

    def training(self, name: str, which: int, now: bool) -> None:
        self.region.training[name, which] = now, raw_here()

    def generator(self, generator: torch.Generator) -> None:
        if generator not in self.region.generators:
            self.region.generators[generator] = _state_of(generator)


class _Again(_Reader):
    """The second run: tensors in the place of others, and other numbers."""

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.raw = calls.where()
        self.numbers = iter(region.numbers)
        self.generators = dict(region.generators)

    def before_write(self, *_: Any) -> list[torch.Tensor]:
        return []

    def read(self, at: _At, t: torch.Tensor) -> None:
        region = self.region
        if key_of(t) in self.own or _spot(t) in region.reads:
            return
        was = region.places.get(at)
        if was is None or was.handle.shape != t.shape or was.handle.dtype != t.dtype:
            return
        if without_grad(lambda: same_bytes(_Base.contiguous(was.handle), _Base.contiguous(_Base.detach(t)))):
            return
        info = tuple(t.shape), str(t.dtype).removeprefix("torch.")
        first, then = f"{at[0]} with one tensor", "finds another in its place"
        region.stop("other", was.raw, self.raw, first, then, also=calls.where(), tensor=info, op=at[0])

    def number(self, name: str, now: tuple[Any, ...]) -> None:
        op, was, raw = next(self.numbers, (None, (), ()))
        if op != name:
            self.numbers = iter(())  # out of step: a value cached by the first run, say, no harm in itself
        elif was != now and not _same(was, now):
            first, then = f"{name} with {_say(was, now)}", f"runs it with {_say(now, was)}"
            self.region.stop("number", raw, self.raw, first, then, op=name)

    def generator(self, generator: torch.Generator) -> None:
        was = self.generators.pop(generator, None)
        if was is not None and was != _state_of(generator):
            self.region.stop("generator", self.region.raw, self.raw)

    def training(self, name: str, which: int, now: bool) -> None:
        was, raw = self.region.training.get((name, which), (now, ()))
        if was != now:
            first, then = f"{name} with training={was}", f"runs it with training={now}"
            self.region.stop("number", raw, self.raw, first, then, op=name)


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Equal, NaN being equal to NaN."""
    return len(a) == len(b) and all(x == y or (x != x and y != y) for x, y in zip(a, b, strict=True))


def _say(these: tuple[Any, ...], others: tuple[Any, ...]) -> str:
    if len(these) != len(others):
        return str(list(these))
    return ", ".join(str(a) for a, b in zip(these, others, strict=True) if a != b)


def _is_all(key: Any) -> bool:
    """`t[:] = ...`, `t[...] = ...`"""
    parts = key if isinstance(key, tuple) else (key,)
    return all(part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in parts)


def _written(name: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The arguments that this call changes."""
    changed: Any = ()
    if kwargs.get("out") is not None:
        changed = (kwargs["out"],)
    elif name in _NORMS:
        changed = _running(name, args, kwargs)
    elif name in _IN_PLACE or (name.endswith("_") and not name.endswith("__")):
        changed = args[:1]
    return [t for _, t in _tensors(changed)]


def _running(name: str, args: Any, kwargs: Any) -> list[Any]:
    """The running statistics of a norm in training: changed, and not used."""
    if not _is_training(name, args, kwargs):
        return []
    return [*args[1:3], kwargs.get("running_mean"), kwargs.get("running_var")]


def _is_training(name: str, args: Any, kwargs: Any) -> bool:
    # F.batch_norm(input, mean, var, weight, bias, training); instance_norm has the same order.
    return bool(args[5] if len(args) > 5 else kwargs.get(_NORMS[name], name == "instance_norm"))


# ------------------------------------------------------------------- both kinds


def _second(region: Region, function: Callable[..., Any]) -> Callable[..., Any]:
    def again(*args: Any, **kwargs: Any) -> Any:
        if region.scope.plain:
            return function(*args, **kwargs)
        region.check()
        with _Again(region):
            return function(*args, **kwargs)

    return again


def _generator(fn: Any, *args: Any, **kwargs: Any) -> Generator[None, None, None]:
    scope = scopes.current()
    if scope is None or _compiling() or not torch.is_grad_enabled():
        yield from compat.generator(fn, *args, **kwargs)
        return
    region = Region(scope)
    inner = compat.generator(_second(region, fn), *args, **kwargs)
    next(inner)
    try:
        with _Reader(region, compat.inputs_of(args, kwargs)):
            yield
    except BaseException as error:
        inner.throw(error)
        raise
    region.finish()
    yield from inner


_plain_forward = _Function.forward


def _forward(ctx: Any, run_function: Any, preserve_rng_state: bool, *args: Any) -> Any:
    scope = scopes.current()
    if scope is None or _compiling():
        return _plain_forward(ctx, run_function, preserve_rng_state, *args)
    region = Region(scope)
    again = _second(region, run_function)
    first = True

    def twice(*inputs: Any) -> Any:
        nonlocal first
        if not first:
            return again(*inputs)
        first = False
        with _Reader(region, inputs):
            out = run_function(*inputs)
        region.finish()
        return out

    return _plain_forward(ctx, twice, preserve_rng_state, *args)


def patches() -> Iterator[tuple[Any, str, Any]]:
    for home in compat.homes():
        yield home, compat.GENERATOR, _generator
    if compat.users_hooks is not None:
        yield _checkpoint, compat.USERS_HOOKS, saved_tensors.users_hooks
    yield _Function, "forward", staticmethod(_forward)
