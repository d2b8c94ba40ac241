from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

def raw_here(depth: int = 1, /) -> tuple[int, ...]: ...
def know_codes(
    meet: Callable[[CodeType], int], own: int, user: int, most_frames: int, most_users: int, /
) -> None: ...
def place(tensor: Any, /) -> tuple[int, int, None, int] | None: ...
def places(params: Sequence[Any], /) -> list[tuple[int, int, None, int]] | None: ...
def note(op: str, how: str, tensor: Any, /) -> bool: ...
def record_to(append: Callable[[Any], None] | None, clock: Iterator[int] | None, /) -> None: ...
def know_tensors(is_contiguous: Any, data_ptr: Any, nbytes: Any, version: Any, grad: Any, /) -> None: ...
def know_facts(exchange: Any, dtype: Any, plain: frozenset[type], /) -> bool: ...
def before_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> None: ...
def after_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> None: ...
def steps_to(
    append: Callable[[Any], None], clock: Iterator[int], slow: Callable[[Any], None], /
) -> Callable[[Any], None]: ...
def know_steps(
    awake: set[str],
    asleep: set[str],
    stepped: list[Callable[[Any], None]],
    overridden: Callable[[Any], bool],
    a_tensor: Any,
    /,
) -> None: ...
def backward(state: list[Any], /) -> Callable[..., Any]: ...
def hear_backwards(
    before: Callable[..., None] | None,
    after: Callable[..., None] | None,
    failed: Callable[..., None] | None,
    when: tuple[Any, ...] | None,
    then: tuple[Any, ...] | None,
    /,
) -> None: ...
def know_backwards(
    history: Any,
    running: list[Any],
    ticks: Iterator[int],
    grad_fn: Any,
    numbers: Callable[[Any], tuple[int, ...]],
    slow: Callable[..., Any],
    hear: Callable[..., None],
    with_nodes: int,
    /,
) -> None: ...
def pack(tensor: Any, /) -> Any: ...
def unpack(packed: Any, /) -> Any: ...
def know_saves(
    entry: type,
    tensor: type,
    ledger: Any,
    local: Any,
    asleep: set[str],
    escapes: Any,
    running: list[Any],
    detach: Any,
    storage_of: Any,
    current_node: Any,
    slow_pack: Any,
    slow_unpack: Any,
    visit: Any,
    /,
) -> None: ...
def layout_of(tensor: Any, /) -> Any: ...
def know_layouts(
    layout: type[tuple[Any, ...]], shape: Any, dtype: Any, stride: Any, storage_offset: Any, slow: Any, /
) -> None: ...
def settle(ledger: Any, /) -> None: ...
def settle_timeline(timeline: Any, /) -> None: ...
def bury(ledger: Any, /) -> None: ...
def know_counters(set_version: Any, base: Any, counter: type, plain: frozenset[type], /) -> None: ...
def know_timelines(storage_of: Any, is_nested: Any, no_undo: Any, /) -> None: ...
def know_writes(*known: Any) -> None: ...
def know_values(*known: Any) -> None: ...
def know_taps(
    ledger: Any,
    tensor: type,
    edits: Any,
    requires_grad: Any,
    is_leaf: Any,
    is_view: Any,
    grad_mode: Any,
    storage_of: Any,
    /,
) -> None: ...

class Tap:
    def __init__(
        self,
        original: Callable[..., Any],
        slow: Callable[..., Any],
        op: str,
        how: str,
        awake: set[str],
        overridden: Callable[[Any], bool],
        told: Callable[..., None],
        writes: int,
        /,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class BackwardCall: ...  # see backwards.py

# What they hold: see fields.py, and rolls.py.
class Ledger: ...
class Timeline: ...
class Entry: ...
class Written: ...
class Counter: ...
class Record: ...
class UndoLog: ...
class LayoutIndex: ...
class Roll: ...

class Function:
    def __init__(
        self,
        original: Callable[..., Any],
        slow: Callable[..., Any],
        op: str,
        how: str,
        awake: set[str],
        overridden: Callable[..., bool],
        told: Callable[..., None],
        edits: Any,
        writes: bool,
        first: bool,
        uncounted: bool,
        /,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Overloads:
    def __init__(
        self,
        original: Callable[..., Any],
        slow: Callable[..., Any],
        awake: set[str],
        known: dict[int, Any],
        /,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
