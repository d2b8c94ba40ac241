"""Where a line of Python is: taken raw and cheap while the program runs, resolved when somebody asks.

A raw site is a flat tuple of numbers (code, lasti, code, lasti, ...), innermost frame first, so that sites are
cheap to make, to compare and to count by. A code object is known by its id: equal code in two files compares
equal, and is slow to hash. Frames are never held: a frame would keep the user's locals alive.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType, TracebackType

import torch

from gradmend.capture import edge
from gradmend.folder import absolute, is_ours
from gradmend.model import Frame, Owner, Site

Raw = tuple[int, ...]

# Deep enough for a user's line below nested modules (three frames a level) and a few callers above it.
_MOST_FRAMES = 64
_MOST_USER_FRAMES = 6

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
_owners: dict[int, int] = {}
_codes: dict[int, CodeType] = {}  # of every site ever taken: held, so that an id stays the id of one


def _owner_of(name: str) -> int:
    if is_ours(name):
        return _OWN
    if name.startswith(_TORCH):
        return _TORCH_OWNED
    if (
        name.startswith(("<frozen", "<eval_with_key>", *_LIBRARY))
        or "site-packages" in name
        or "dist-packages" in name
    ):
        return _LIB
    return _USER


def _meet(code: CodeType) -> int:
    owner = _owners.get(id(code))
    if owner is None:
        _codes[id(code)] = code
        owner = _owners[id(code)] = _owner_of(code.co_filename)
    return owner


def is_user(code: CodeType) -> bool:
    return is_user_file(code.co_filename)


def is_user_file(name: str) -> bool:
    return _owner_of(name) == _USER


def _raw_here() -> Raw:
    """The call chain above, our own frames left out, without resolving anything."""
    return raw_from(sys._getframe(1))


def raw_from(frame: FrameType | None) -> Raw:
    """The same from a frame on, perhaps another thread's."""
    out: list[int] = []
    add = out.append
    owner_of = _owners.get
    users, room = 0, _MOST_FRAMES
    while frame is not None and room:
        code = frame.f_code
        known = id(code)
        owner = owner_of(known)
        if owner is None:
            owner = _meet(code)
        if owner != _OWN:
            add(known)
            add(frame.f_lasti)
            room -= 1
            if not owner:
                users += 1
                if users == _MOST_USER_FRAMES:
                    break
        elif users:
            break  # the launcher of `gradmend run`: what called it is no part of the program
        frame = frame.f_back
    return tuple(out)


edge.tell("know_codes", _meet, _OWN, _USER, _MOST_FRAMES, _MOST_USER_FRAMES)
raw_here: Callable[[], Raw] = edge.chosen("raw_here", _raw_here)


def raw_of(tb: TracebackType | None) -> Raw:
    """Where an exception was raised."""
    out: list[int] = []
    while tb is not None:
        if _meet(tb.tb_frame.f_code) != _OWN:
            out[:0] = (id(tb.tb_frame.f_code), tb.tb_lasti)
        tb = tb.tb_next
    return tuple(out)


@lru_cache(maxsize=4096)
def _frame(known: int, lasti: int) -> Frame:
    code = _codes[known]
    line, end_line, col, end_col = next(islice(code.co_positions(), lasti // 2, None), (None,) * 4)
    file = code.co_filename
    if not file.startswith("<"):
        file = absolute(file)
    owner = _owners[known]
    return Frame(
        file=file,
        line=line if line is not None else code.co_firstlineno,
        function=code.co_qualname,
        owner=_NAMES[owner] if owner < len(_NAMES) else "library",
        col=col,
        end_line=end_line,
        end_col=end_col,
    )


@lru_cache(maxsize=4096)
def resolve(raw: Raw) -> Site:
    # The launcher that runs a script (runpy) is no caller of the user's code.
    frames = [_frame(raw[i], raw[i + 1]) for i in range(0, len(raw), 2)]
    while frames and frames[-1].owner != "user" and any(f.owner == "user" for f in frames):
        frames.pop()
    return Site(tuple(frames))


def here() -> Site:
    return resolve(raw_here())
