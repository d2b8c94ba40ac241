from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

def raw_here(depth: int = 1, /) -> tuple[int, ...]: ...
def know(
    meet: Callable[[CodeType], int], own: int, user: int, most_frames: int, most_users: int, /
) -> None: ...
def place(tensor: Any, /) -> tuple[int, int, None, int] | None: ...
def places(params: Sequence[Any], /) -> list[tuple[int, int, None, int]] | None: ...
def note(op: str, how: str, tensor: Any, /) -> bool: ...
def record_to(append: Callable[[Any], None] | None, clock: Iterator[int] | None, /) -> None: ...
def pack(tensor: Any, /) -> Any: ...
def unpack(packed: Any, /) -> Any: ...
def know_saves(
    entry: type,
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

class Tap:
    def __init__(
        self,
        original: Callable[..., Any],
        slow: Callable[..., Any],
        op: str,
        how: str,
        awake: set[str],
        plain: frozenset[type],
        overridden: Callable[[Any], bool],
        told: Callable[..., None],
        /,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
