"""Checkpointed regions run twice: what the second run reads must be what the first one read.

While a region runs the first time, a torch-function mode enters each tensor from outside that it reads into the
ledger (its positional arguments are checkpoint's own Saves). Before it runs again each of them is asked for: heal()
can't help here, since a forward reads the value where it lies. The second run is read too, for tensors that took
the place of others and for numbers that changed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.utils.checkpoint as _checkpoint
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from gradmend.capture.graph import calls
from gradmend.capture.hooks import saved_tensors
from gradmend.capture.ledger import scopes
from gradmend.capture.ledger.findings import SilentFinding
from gradmend.capture.ledger.unguarded import Read
from gradmend.capture.memory.undo import same_bytes
from gradmend.capture.sites import Raw, raw_here
from gradmend.capture.taps import hub
from gradmend.capture.taps.homes import OPERATORS
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
_NORMS = {"batch_norm": "training", "instance_norm": "use_input_stats"}
_IN_PLACE_OPERATORS = frozenset(OPERATORS)
_TRAINED_WITHOUT = frozenset({"running_mean", "running_var"})


class Region:
    """One call of checkpoint(): what its first run read, drew and computed with."""

    def __init__(self, scope: Any, raw: Raw, own: list[torch.Tensor]) -> None:
        self.scope = scope
        self.raw = raw
        self.own = {_key(t) for t in own}  # kept by checkpoint itself
        self.reads: dict[tuple[int, Any, Any], Read] = {}
        self.places: dict[tuple[str, int, int], Read] = {}  # (op, which call of it, which argument) -> read
        self.numbers: list[tuple[str, tuple[Any, ...], Raw]] = []
        self.made: set[int] = set()
        self.rng = _random_state()
        self.draws = False

    def finish(self) -> None:
        self.draws = _random_state() != self.rng

    def check(self) -> None:
        """Before the second run: is everything as it was?"""
        if self.draws and _random_state() != self.rng:
            self.stop(SilentFinding("GM208", [], made=self.raw, backward=calls.where(), facts={"why": "rng"}))
        for read in self.reads.values():
            hub.LEDGER.ask(read)

    def stop(self, finding: SilentFinding) -> None:
        error = self.scope.tell(finding)
        if error is not None:
            raise error


def _random_state() -> bytes:
    """Of the CPU's generator, and of the accelerator's where one is in use. Both lie in the host's memory."""
    with _disable_current_modes():  # a mode of the program's shall not see us look
        state = bytes(_Base.numpy(torch.get_rng_state()))
    device = torch.accelerator.current_accelerator()
    if device is None:
        return state
    module = torch.get_device_module(device)
    if not getattr(module, "is_initialized", bool)() or not hasattr(module, "get_rng_state"):
        return state
    return state + bytes(_Base.numpy(module.get_rng_state()))


def _key(t: torch.Tensor) -> int:
    try:
        return _Base.untyped_storage(t)._cdata
    except RuntimeError:
        return 0


def _tensors(args: Any, into: list[tuple[int, torch.Tensor]], place: int = 0) -> None:
    for i, a in enumerate(args):
        if isinstance(a, torch.Tensor):
            into.append((place + i, a))
        elif isinstance(a, (list, tuple)):
            _tensors(a, into, place + i)


def _outputs(out: Any) -> set[int]:
    found: list[tuple[int, torch.Tensor]] = []
    _tensors((out,), found)
    return {_key(t) for _, t in found}


def _is_ours(file: str) -> bool:
    """The ledger's own looks at memory are no reads of the region; what a tap passes on is."""
    return file.startswith(OURS) and not file.startswith(TAPS)


class _Reader(TorchFunctionMode):
    def __init__(self, region: Region) -> None:
        super().__init__()
        self.region = region
        self.calls: Counter[str] = Counter()
        self.changed: dict[int, list[tuple[str, int, int, torch.Tensor, Read]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if (
            name in _SHAPE_ONLY
            or name.startswith(_MODES)
            or _compiling()
            or _is_ours(sys._getframe(1).f_code.co_filename)
        ):
            return func(*args, **kwargs)
        found: list[tuple[int, torch.Tensor]] = []
        _tensors(args, found)
        _tensors(kwargs.values(), found, 1000)
        if name in _SHAPE_OF_SECOND:
            found = found[:1]
        self.calls[name] += 1
        which = self.calls[name]
        self.number(name, args, kwargs)
        written = _written(name, args, kwargs)
        counted = self.before_write(name, which, found, written) if written else []
        # The tap that led here asked before these Saves were made.
        token = hub.LEDGER.before(name, counted) if counted else None
        made: set[int] = set()
        try:
            out = func(*args, **kwargs)
            made = _outputs(out)
        finally:  # a recomputation is broken off at the last tensor it saves, inside that op
            if token is not None:
                hub.LEDGER.after(token)
            for place, t in found:
                # What it made a view of, it did not read.
                if not any(t is w for w in written) and (_key(t) not in made or written):
                    self.read(name, which, place, t)
        self.produced(made, found)
        return out

    def produced(self, made: set[int], found: list[tuple[int, torch.Tensor]]) -> None:
        outer = {_key(t) for _, t in found}
        self.region.made |= made - outer

    def before_write(
        self, name: str, which: int, found: list[tuple[int, torch.Tensor]], written: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """A region may count calls in a buffer: what it changed matters only if it reads it afterwards."""
        counted = []
        for place, t in found:
            if any(t is w for w in written) and name not in _OVERWRITING and self.is_outer(t):
                entry = self.enter(name, t)
                if entry is not None:
                    self.changed.setdefault(_key(t), []).append((name, which, place, t, entry))
                    counted.append(t)
        return counted

    def is_outer(self, t: torch.Tensor) -> bool:
        key = _key(t)
        return key != 0 and key not in self.region.made and key not in self.region.own

    def enter(self, name: str, t: torch.Tensor) -> Read | None:
        region = self.region
        try:
            entry = hub.LEDGER.save(t, region.scope, raw_here(), Read)
        except RuntimeError:
            return None
        assert isinstance(entry, Read)
        entry.op, entry.region = name, region.raw
        return entry

    def read(self, name: str, which: int, place: int, t: torch.Tensor) -> None:
        if not self.is_outer(t):
            return
        region, key = self.region, _key(t)
        if key in self.changed:
            for _, _, _, _, entry in self.changed.pop(key):
                region.reads[key, "written", id(entry)] = entry
            region.made.add(key)  # from here on its value is the region's own doing
            return
        known = (key, t.storage_offset(), (t.shape, t.stride()))
        read = region.reads.get(known) or self.enter(name, t)
        if read is None:
            return
        region.reads[known] = read
        region.places[name, which, place] = read

    def number(self, name: str, args: Any, kwargs: Any) -> None:
        if name not in _NORMS:
            self.region.numbers.append((name, _numbers(args, kwargs), raw_here()))


class _Again(_Reader):
    """The second run: tensors in the place of others, and other numbers."""

    def __init__(self, region: Region, raw: Raw) -> None:
        super().__init__(region)
        self.raw = raw
        self.aligned = True
        self.at = 0
        self.own: set[int] = set()

    def produced(self, made: set[int], found: list[tuple[int, torch.Tensor]]) -> None:
        self.own |= made - {_key(t) for _, t in found}

    def before_write(self, *_: Any) -> list[torch.Tensor]:
        return []

    def read(self, name: str, which: int, place: int, t: torch.Tensor) -> None:
        region, key = self.region, _key(t)
        if key in self.own or (key, t.storage_offset(), (t.shape, t.stride())) in region.reads:
            return
        was = region.places.get((name, which, place))
        if was is None or was.handle.shape != t.shape or was.handle.dtype != t.dtype:
            return
        with torch.no_grad():
            if same_bytes(_Base.contiguous(was.handle), _Base.contiguous(_Base.detach(t))):
                return
        region.stop(
            SilentFinding(
                "GM208",
                [],
                made=was.raw,
                also=calls.where(),
                backward=self.raw,
                tensor=(tuple(t.shape), str(t.dtype).removeprefix("torch.")),
                op=name,
                facts={
                    "why": "other",
                    "first": f"{name} with one tensor",
                    "then": "finds another in its place",
                },
            )
        )

    def number(self, name: str, args: Any, kwargs: Any) -> None:
        if name in _NORMS or not self.aligned:
            return
        numbers = self.region.numbers
        if self.at >= len(numbers) or numbers[self.at][0] != name:
            self.aligned = False  # a value cached by the first run, say: no harm in itself
            return
        _, was, raw = numbers[self.at]
        self.at += 1
        now = _numbers(args, kwargs)
        if was != now and not _all_nan(was, now):
            self.region.stop(
                SilentFinding(
                    "GM208",
                    [],
                    made=raw,
                    backward=self.raw,
                    op=name,
                    facts={
                        "why": "number",
                        "first": f"{name} with {_say(was, now)}",
                        "then": f"runs it with {_say(now, was)}",
                    },
                )
            )


def _numbers(args: Any, kwargs: Any) -> tuple[Any, ...]:
    return tuple(a for a in (*args, *kwargs.values()) if type(a) in (float, int, bool))


def _all_nan(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return len(a) == len(b) and all(x == y or (x != x and y != y) for x, y in zip(a, b, strict=True))


def _say(these: tuple[Any, ...], others: tuple[Any, ...]) -> str:
    if len(these) != len(others):
        return str(list(these))
    return ", ".join(str(a) for a, b in zip(these, others, strict=True) if a != b)


def _written(name: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The arguments that this call changes."""
    found: list[tuple[int, torch.Tensor]] = []
    if kwargs.get("out") is not None:
        _tensors((kwargs["out"],), found)
    elif name in _NORMS:
        return _running(name, args, kwargs)
    elif (
        (name.endswith("_") and not name.endswith("__"))
        or name in _IN_PLACE_OPERATORS
        or name == "__setitem__"
    ):
        _tensors(args[:1], found)
    return [t for _, t in found]


def _running(name: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The running statistics of a norm in training: changed, and not used."""
    # F.batch_norm(input, mean, var, weight, bias, training); instance_norm has the same order.
    training = args[5] if len(args) > 5 else kwargs.get(_NORMS[name], name == "instance_norm")
    if not training:
        return []
    stats = [*args[1:3], *(v for k, v in kwargs.items() if k in _TRAINED_WITHOUT)]
    return [t for t in stats if isinstance(t, torch.Tensor)]


# ------------------------------------------------------------------- both kinds


def _second(region: Region, function: Callable[..., Any]) -> Callable[..., Any]:
    def again(*args: Any, **kwargs: Any) -> Any:
        if region.scope.plain:
            return function(*args, **kwargs)
        region.check()
        raw = calls.where()
        with _Again(region, raw):
            return function(*args, **kwargs)

    return again


def _generator(fn: Any, *args: Any, **kwargs: Any) -> Generator[None, None, None]:
    scope = scopes.current()
    if scope is None or _compiling() or not torch.is_grad_enabled():
        yield from compat.generator(fn, *args, **kwargs)
        return
    inputs = compat.inputs_of(args, kwargs)
    region = Region(scope, raw_here(), [a for a in inputs if isinstance(a, torch.Tensor)])
    inner = compat.generator(_second(region, fn), *args, **kwargs)
    next(inner)
    failure: BaseException | None = None
    with _Reader(region):
        try:
            yield
        except BaseException as error:
            failure = error
    if failure is not None:
        inner.throw(failure)
        raise failure
    region.finish()
    yield from inner


_plain_forward = _Function.forward
_forward_slot = vars(_Function)["forward"]  # the staticmethod itself, to put back


def _forward(ctx: Any, run_function: Any, preserve_rng_state: bool, *args: Any) -> Any:
    scope = scopes.current()
    if scope is None or _compiling():
        return _plain_forward(ctx, run_function, preserve_rng_state, *args)
    region = Region(scope, raw_here(), [a for a in args if isinstance(a, torch.Tensor)])
    again = _second(region, run_function)
    first = True

    def twice(*inputs: Any) -> Any:
        nonlocal first
        if not first:
            return again(*inputs)
        first = False
        with _Reader(region):
            out = run_function(*inputs)
        region.finish()
        return out

    return _plain_forward(ctx, twice, preserve_rng_state, *args)


_homes: list[Any] = []  # the modules whose name is ours while we are armed


def arm() -> None:
    _homes[:] = compat.homes()
    for home in _homes:
        setattr(home, compat.GENERATOR, _generator)
    if compat.users_hooks is not None:
        setattr(_checkpoint, compat.USERS_HOOKS, saved_tensors.users_hooks)
    _Function.forward = staticmethod(_forward)


def disarm() -> None:
    for home in _homes:
        setattr(home, compat.GENERATOR, compat.generator)
    if compat.users_hooks is not None:
        setattr(_checkpoint, compat.USERS_HOOKS, compat.users_hooks)
    _Function.forward = _forward_slot
