"""Where a line of Python is: taken raw and cheap while the program runs, resolved when somebody asks.

A raw site is a flat tuple (code, lasti, code, lasti, ...), innermost frame first. It holds code objects,
never frames: a frame would keep the user's locals alive.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from itertools import islice
from types import CodeType
from typing import Any

import torch

from gradmend.model import Frame, Owner, Site

Raw = tuple[Any, ...]

# Deep enough for a user's line below nested modules (three frames a level) and a few callers above it.
_MOST_FRAMES = 64
_MOST_USER_FRAMES = 6

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_LIBRARY = tuple(
    {
        os.path.abspath(path) + os.sep
        for key in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_paths().get(key))
    }
)

_USER, _LIB, _TORCH_OWNED, _OWN = 0, 1, 2, 3
_NAMES: tuple[Owner, ...] = ("user", "library", "torch")
# By file, not by code object: equal code in two files compares equal, and hashing code can take microseconds.
_owners: dict[str, int] = {}


def _owner(code: CodeType) -> int:
    name = code.co_filename
    if name.startswith(_OURS):
        owner = _OWN
    elif name.startswith(_TORCH):
        owner = _TORCH_OWNED
    elif name.startswith(("<frozen", *_LIBRARY)) or "site-packages" in name or "dist-packages" in name:
        owner = _LIB
    else:
        owner = _USER
    _owners[name] = owner
    return owner


def is_user(code: CodeType) -> bool:
    return _owner(code) == _USER


def raw_here(depth: int = 1) -> Raw:
    """The call chain above the caller, without resolving anything."""
    frame = sys._getframe(depth)
    out: list[Any] = []
    add = out.append
    owners = _owners
    users, room = 0, _MOST_FRAMES
    while frame is not None and room:
        code = frame.f_code
        owner = owners.get(code.co_filename)
        if owner is None:
            owner = _owner(code)
        if owner != _OWN:
            add(code)
            add(frame.f_lasti)
            room -= 1
            if owner == _USER:
                users += 1
                if users == _MOST_USER_FRAMES:
                    break
        elif users:
            break  # the launcher of `gradmend run`: what called it is no part of the program
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(out)


@lru_cache(maxsize=4096)
def _frame(file: str, code: CodeType, lasti: int) -> Frame:
    line, end_line, col, end_col = next(islice(code.co_positions(), lasti // 2, None), (None,) * 4)
    if not file.startswith("<"):
        file = os.path.abspath(file)
    owner = _owners.get(code.co_filename)
    if owner is None:
        owner = _owner(code)
    return Frame(
        file=file,
        line=line if line is not None else code.co_firstlineno,
        function=code.co_qualname,
        owner=_NAMES[owner] if owner < len(_NAMES) else "library",
        col=col,
        end_line=end_line,
        end_col=end_col,
    )


def identity(raw: Raw) -> Raw:
    """What a raw site is known by. Code objects compare equal across files, and are slow to hash."""
    return tuple([part if type(part) is int else id(part) for part in raw])


def resolve(raw: Raw) -> Site:
    # The launcher that runs a script (runpy) is no caller of the user's code.
    frames = [_frame(raw[i].co_filename, raw[i], raw[i + 1]) for i in range(0, len(raw), 2)]
    while frames and frames[-1].owner != "user" and any(f.owner == "user" for f in frames):
        frames.pop()
    return Site(tuple(frames))


def here(depth: int = 1) -> Site:
    return resolve(raw_here(depth + 1))
