"""A trial's own view of the machine: every file outside the scratch copy is read-only, `/dev/shm` and the network are its own.

Read-only mounts also refuse what Landlock does not cover: times, modes, owners and attributes of files. Processes that the
trial starts inherit the view. Needs Linux 5.12 and the right to make namespaces, which some containers take away.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from typing import Any

_NEWNS, _NEWIPC, _NEWUSER, _NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
_BIND, _REC, _PRIVATE = 1 << 12, 1 << 14, 1 << 18  # of mount(2)
_SETATTR = 442  # mount_setattr, on every architecture
_AT_FDCWD, _RECURSIVE, _RDONLY = -100, 0x8000, 1
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # of an interface


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def enter(scratch: str, network: bool) -> bool:
    """Make the view and go into it; False, with nothing taken away, where the kernel refuses. `network`: keep the machine's."""
    if sys.platform != "linux":
        return False
    libc: Any = ctypes.CDLL(None, use_errno=True)
    spaces = _NEWNS | _NEWIPC | (0 if network else _NEWNET)
    here, user, group = os.getcwd(), os.geteuid(), os.getegid()
    if libc.unshare(spaces | _NEWUSER) == 0:
        try:
            _map(user, group)
        except OSError:
            return False
    elif libc.unshare(spaces) != 0:
        return False
    if not network:
        _loopback_up()
    shared = b"/dev/shm"
    made = (
        libc.mount(b"none", b"/", None, _REC | _PRIVATE, None) == 0
        and libc.mount(os.fsencode(scratch), os.fsencode(scratch), None, _BIND, None) == 0
        and _attributes(libc, b"/", _Attributes(set=_RDONLY), _RECURSIVE)
        and _attributes(libc, os.fsencode(scratch), _Attributes(clear=_RDONLY), 0)
        and (not os.path.isdir(shared) or libc.mount(b"tmpfs", shared, b"tmpfs", 0, b"mode=1777") == 0)
    )
    os.chdir(here)  # by its name: the folder that was open lies below the old view
    return bool(made)


def _map(user: int, group: int) -> None:
    """The program stays the user that it is."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _attributes(libc: Any, path: bytes, wanted: _Attributes, flags: int) -> bool:
    done = libc.syscall(_SETATTR, _AT_FDCWD, path, flags, ctypes.byref(wanted), ctypes.sizeof(wanted))
    return int(done) == 0


def _loopback_up() -> None:
    """Ranks on this machine, and servers of the program's own, talk over it."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            request = struct.pack("16sh22x", b"lo", 0)
            flags = struct.unpack("16sh22x", fcntl.ioctl(asked, _GET_FLAGS, request))[1]
            fcntl.ioctl(asked, _SET_FLAGS, struct.pack("16sh22x", b"lo", flags | _UP))
    except OSError:
        return
