"""What we load late is found, whatever the program has done to `sys.path` since: many of our modules load only when
there is something to tell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradmend.folder import absolute

# As they were when this module was loaded: before the program could change them.
_path = [absolute(entry) for entry in sys.path]
_lists: dict[str, list[Any]] = {
    "path": _path,
    "meta_path": list(sys.meta_path),
    "path_hooks": list(sys.path_hooks),
}


@contextmanager
def own_imports() -> Iterator[None]:
    """Our own lists first, the program's after them; its own lists are back afterwards, the same objects."""
    if _untouched():
        yield
        return
    theirs = {name: getattr(sys, name, None) for name in _lists}
    for name, ours in _lists.items():
        now = theirs[name]
        setattr(sys, name, [*ours, *(e for e in (now if isinstance(now, list) else ()) if e not in ours)])
    try:
        yield
    finally:
        for name, now in theirs.items():
            setattr(sys, name, now)


def _untouched() -> bool:
    """Whether all of ours is still there. The first on the path is the folder of whatever runs: that may go."""
    for name, ours in _lists.items():
        now = getattr(sys, name, None)
        if not isinstance(now, list) or any(e not in now for e in (ours[1:] if name == "path" else ours)):
            return False
    return True
