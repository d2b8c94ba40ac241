"""Which Python objects hold a graph when a backward ends: the places that can carry it into a later backward.

A second backward fails at an edge from a new node to one that an earlier backward used up. By then the variable that held
the old tensor holds a new one, so the names are taken when each backward ends. A record is numbers and words only: it keeps
no tensor, node or frame alive.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from inspect import CO_OPTIMIZED
from time import perf_counter
from types import CellType, CodeType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, Literal

import torch

from gradmend.capture.graph import nodes
from gradmend.capture.graph.calls import BackwardCall, Roots
from gradmend.capture.sites import is_user, is_user_file

Kind = Literal["local", "global", "attribute", "item", "cell", "cache"]

_KEPT = 64  # records; graph/calls.py keeps as many calls
_MOST_OBJECTS = 5_000
_MOST_KEYS = 2_000
_MOST_FRAMES = 8
_DEPTH = 8
_ENDS = 16  # items looked at on either side of a long list
_MOST_SLOTS = 6  # of one node
_EVERY = 12  # calls after each of which a walk is made; then only as often as costs little:
_SHARE = 50  # not before so many times what the last walk took
_SNAPSHOTS = sys.version_info < (3, 13)  # there f_locals keeps a copy of the variables on the frame


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a path. `file` and `home` say where its name belongs: a function, or the class of the object; of an
    item `home` is the type of its container."""

    kind: Kind
    key: str  # a name; of an item the key as Python writes it
    file: str = ""
    home: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place that holds a tensor, as a path from a variable: `net.h`, `memory["h"]`, `states[0]`."""

    steps: tuple[Step, ...]

    @property
    def path(self) -> str:
        """How the frame of its first step spells it; what no expression reaches (a closure's cell) ends in its name."""
        text = ""
        for step in self.steps:
            if step.kind == "item":
                text += f"[{step.key}]"
            elif step.kind in ("cell", "cache"):
                text = step.key
            else:
                text = f"{text}.{step.key}" if text else step.key
        return text

    @property
    def reachable(self) -> bool:
        """Whether its path is an expression in the frame of its first step."""
        return all(s.kind not in ("cell", "cache") for s in self.steps)

    @property
    def last(self) -> Step:
        """The step that names it; items go by their container."""
        return next((s for s in reversed(self.steps) if s.kind != "item"), self.steps[-1])


Held = dict[int, list[Slot]]  # by the number of the node that made the tensor

# The tick of the call, what was held as it ended, and the number of the next node then.
_records: deque[tuple[int, Held, int]] = deque(maxlen=_KEPT)
_next_number = torch._C._autograd._get_sequence_nr


def watch(call: BackwardCall, roots: Roots, grads: Any) -> Any:
    """A watcher of backward_calls."""
    return _ended


def _ended(call: BackwardCall, roots: Roots) -> None:
    global _calls, _cost, _ended_at
    if call.outcome != "done" or call.retain:
        return
    _calls += 1
    start = perf_counter()
    if _calls > _EVERY and start - _ended_at < _SHARE * _cost:
        return
    _records.append((call.tick, held(sys._getframe(1)), _next_number()))
    _ended_at = perf_counter()
    _cost = _ended_at - start


_calls = 0
_cost = _ended_at = 0.0  # of the last walk, in seconds, and when it was over


def of(call: BackwardCall) -> tuple[Held, int]:
    """What was held when this call ended, and the number of the first node made after it."""
    return next(((found, end) for tick, found, end in _records if tick == call.tick), ({}, 0))


def forget() -> None:
    global _calls
    _calls = 0
    _records.clear()
    _homes.clear()


def held(frame: FrameType | None) -> Held:
    """Where tensors of a graph are held now: in the variables of the program's frames from this one up, and in
    what those refer to."""
    found: Held = {}
    with torch._C.DisableTorchFunctionSubclass():
        for tensor, slot in _tensors(frame):
            if (node := node_of(tensor)) is None:
                continue
            slots = found.setdefault(int(node._sequence_nr()), [])
            if len(slots) < _MOST_SLOTS and slot not in slots:
                slots.append(slot)
    return found


def node_of(tensor: torch.Tensor) -> Any:
    """The node that made it; None of a leaf, and of a view that PyTorch lets nobody use since its base was written."""
    try:
        return nodes.known(tensor.grad_fn)
    except RuntimeError:
        return None


def _in_graph(tensor: torch.Tensor) -> bool:
    return bool(tensor.requires_grad) and node_of(tensor) is not None


def tensors(frame: FrameType | None) -> Iterator[tuple[torch.Tensor, Slot]]:
    """The tensors themselves, for a story that is being told."""
    with torch._C.DisableTorchFunctionSubclass():
        yield from _tensors(frame)


# A value to look into, and the way to it: the step, and the way before it. Steps are made where a tensor is found.
_Way = tuple[tuple[Any, ...], Any]


def _tensors(frame: FrameType | None) -> Iterator[tuple[torch.Tensor, Slot]]:
    ahead: deque[tuple[Any, _Way, int]] = deque((one[0], (one[1:], None), 1) for one in _variables(frame))
    seen: set[int] = set()
    alive: list[Any] = []  # so that no id in `seen` is used again
    while ahead and len(seen) < _MOST_OBJECTS:
        value, way, depth = ahead.popleft()
        if isinstance(value, torch.Tensor):
            if _in_graph(value):
                yield value, _slot(way)
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        alive.append(value)
        if depth < _DEPTH:
            for one in _below(value):
                ahead.append((one[0], (one[1:], way), depth + 1))


def _slot(way: _Way | None) -> Slot:
    steps: list[Step] = []
    while way is not None:
        steps.append(Step(*way[0]))
        way = way[1]
    return Slot(tuple(reversed(steps)))


_PLAIN = frozenset(
    {
        int,
        float,
        str,
        bytes,
        bool,
        type(None),
        torch.Size,
        torch.dtype,
        torch.device,
        type,
        torch.nn.Parameter,
    }
)
_Held = tuple[Any, ...]  # a value, and the fields of the Step to it


def _may_lead(value: Any) -> bool:
    """Whether a value holds a graph, or may lead to one that does."""
    kind = type(value)
    if kind is torch.Tensor:
        return bool(value.requires_grad)
    return kind not in _PLAIN


# -- variables ---------------------------------------------------------------------------------------
def _variables(frame: FrameType | None) -> Iterator[_Held]:
    files: set[str] = set()
    seen = 0
    spaces: list[tuple[dict[str, Any], str]] = []
    while frame is not None and seen < _MOST_FRAMES:
        code = frame.f_code
        if is_user(code):
            seen += 1
            if code.co_flags & CO_OPTIMIZED:
                yield from _locals(frame, code)
            if code.co_filename not in files:
                files.add(code.co_filename)
                spaces.append((frame.f_globals, code.co_filename))
        frame = frame.f_back
    for space, file in spaces:
        for name, value in list(space.items()):
            if _may_lead(value) and not name.startswith("__"):
                yield value, "global", name, file


def _locals(frame: FrameType, code: CodeType) -> Iterator[_Held]:
    values = _values(frame, code)
    for name, value in values.items():
        if _may_lead(value):
            yield value, "local", name, code.co_filename, code.co_name


def _values(frame: FrameType, code: CodeType) -> dict[str, Any]:
    """A function's variables. Where asking leaves a copy of them on the frame, it is emptied: it would keep their
    tensors alive. Not asked where the program has such a copy (`locals()`), which would change in its hands."""
    if not _SNAPSHOTS:
        return dict(frame.f_locals)
    names = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    if any(type(d) is dict and d and names.issuperset(d) for d in gc.get_referents(frame)):
        return {}
    copy = frame.f_locals
    values = dict(copy)
    copy.clear()
    return values


# -- what a value refers to ---------------------------------------------------------------------------
def _below(value: Any) -> Iterator[_Held]:
    kind = type(value)
    if isinstance(value, dict):
        if len(value) <= _MOST_KEYS:
            for key, one in list(value.items()):
                if _may_lead(one):
                    yield one, "item", repr(key) if type(key) in (str, int) else "...", "", "dict"
    elif isinstance(value, (list, tuple, deque)):
        yield from _items(value)
    elif isinstance(value, torch.nn.Module):
        yield from _in_module(value)
    elif kind is FunctionType:
        yield from _cells(value)
    elif kind is MethodType:
        yield value.__self__, "attribute", "__self__"
    elif kind is partial:
        for one in (value.func, *value.args, *value.keywords.values()):
            yield one, "cache", getattr(one, "__name__", "partial")
    elif kind is GeneratorType:
        if value.gi_frame is not None and is_user(value.gi_frame.f_code):
            code = value.gi_frame.f_code
            for name, one in _values(value.gi_frame, code).items():
                yield one, "cell", name, code.co_filename, code.co_name
    elif isinstance(value, ModuleType):
        file = getattr(value, "__file__", None)
        if file and is_user_file(file):
            for name, one in list(vars(value).items()):
                if _may_lead(one) and not name.startswith("__"):
                    yield one, "attribute", name, file
    elif hasattr(kind, "cache_info") and hasattr(value, "__wrapped__"):
        yield from _cached(value)
    elif _is_users(kind):
        yield from _attributes(value)


def _items(value: Any) -> Iterator[_Held]:
    size = len(value)
    if size and type(value[0]) in _PLAIN and type(value[-1]) in _PLAIN:
        return  # numbers or words
    order = range(size) if size <= 2 * _ENDS else [*range(_ENDS), *range(size - _ENDS, size)]
    for i in order:
        one = value[i]
        if _may_lead(one):
            yield one, "item", str(i), "", type(value).__name__


def _in_module(module: torch.nn.Module) -> Iterator[_Held]:
    home = _home(type(module))
    own = vars(module)
    for group in (own["_modules"], own["_buffers"]):
        for name, one in group.items():
            if one is not None and _may_lead(one):
                yield one, "attribute", name, *home
    if home[0]:
        for name, one in list(own.items()):
            if _may_lead(one) and name not in _REGISTERED and not name.endswith("_hooks"):
                yield one, "attribute", name, *home
    else:  # a layer of torch's keeps no graph, but somebody may have set one
        for name, one in list(own.items()):
            if type(one) is torch.Tensor and one.requires_grad:
                yield one, "attribute", name, *home


_REGISTERED = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})


def _attributes(value: Any) -> Iterator[_Held]:
    home = _home(type(value))
    for name, one in list(getattr(value, "__dict__", {}).items()):
        if _may_lead(one):
            yield one, "attribute", str(name), *home
    for base in type(value).__mro__:
        for name, member in list(vars(base).items()):
            if type(member).__name__ == "member_descriptor":
                try:
                    yield member.__get__(value), "attribute", name, *home
                except AttributeError:
                    continue


def _cells(function: FunctionType) -> Iterator[_Held]:
    code = function.__code__
    if not is_user(code):
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        one = _content(cell)
        if _may_lead(one):
            yield one, "cell", name, code.co_filename, code.co_name
    for one in function.__defaults__ or ():
        if _may_lead(one):
            yield one, "cell", code.co_name, code.co_filename, code.co_name
    wrapped = vars(function).get("__wrapped__")
    if wrapped is not None:
        yield wrapped, "cache", code.co_name, code.co_filename, code.co_name


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _cached(wrapper: Any) -> Iterator[_Held]:
    """The results that `functools.lru_cache` keeps; it has no name for them but the function's."""
    code = getattr(wrapper.__wrapped__, "__code__", None)
    if code is None or not is_user(code):
        return
    todo, seen = [wrapper], {id(wrapper.__wrapped__)}
    while todo and len(seen) < _MOST_OBJECTS:
        for one in gc.get_referents(todo.pop()):
            if id(one) in seen:
                continue
            seen.add(id(one))
            if isinstance(one, torch.Tensor):
                yield one, "cache", code.co_name, code.co_filename, code.co_name
            elif type(one) in (dict, list, tuple) or type(one).__name__ == "_lru_list_elem":
                todo.append(one)


def _is_users(kind: type) -> bool:
    if kind.__module__ == "types" and kind.__name__ == "SimpleNamespace":
        return True
    return bool(_home(kind)[0])


_homes: dict[type, tuple[str, str]] = {}


def _home(kind: type) -> tuple[str, str]:
    """The file and name of the nearest class that the user wrote; empty where none is theirs."""
    known = _homes.get(kind)
    if known is None:
        known = "", ""
        for base in kind.__mro__:
            file = getattr(sys.modules.get(base.__module__), "__file__", None)
            if file and is_user_file(file):
                known = file, base.__name__
                break
        _homes[kind] = known
    return known
