"""Trials reach nothing outside their copy, and neither do the processes that they start.

Namespaces make every file outside read-only and take the network away (namespaces.py). Landlock refuses writes outside the
copy, connections, abstract sockets and signals to processes outside. Children inherit both, and nothing can take them off
again. Where the kernel lacks either, starting a process is refused. Connections are refused by Python's audit events too,
which know a socket by its path.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import sys
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from gradmend.fix.trials import namespaces

# linux/landlock.h; the numbers of its calls are the same on every architecture.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38  # of prctl
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_CHANGES = sum(
    1 << bit for bit in range(4, 13)
)  # remove and make directories, files, sockets, links, devices
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3
_CONNECT = 1 | 2  # bind and connect of TCP, since version 4
_SCOPED = 1 | 2  # abstract sockets and signals, since version 6


class _Rules(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def version() -> int:
    """Of Landlock in the running kernel; 0 where there is none."""
    if platform.system() != "Linux":
        return 0
    return max(0, int(_libc().syscall(_CREATE, None, 0, _ASK_VERSION)))


def confine(
    scratch: str, allow: Collection[str], extra: dict[str, Any], ranks: bool, kernel: bool = True
) -> None:
    """From here on this process and its children write in `scratch` alone. `ranks`: it talks to other ranks, on this
    machine; the kernel can't tell these connections from others, so only Python's are refused. `kernel`: ask it."""
    network = "network" in allow or ranks
    apart = kernel and namespaces.enter(scratch, network)
    by_kernel = kernel and _landlock([scratch, *(["/dev/shm"] if apart else [])], network)
    extra["confined"] = apart and by_kernel
    if not extra["confined"] and "processes" not in allow:
        _refuse(_STARTS, "start a process: allow it with --allow-processes")
    _refuse(("os.kill", "os.killpg"), "signal a process that it did not start", _is_own)
    if "network" not in allow:
        local = partial(_is_local, scratch=scratch)
        _refuse(_CONNECTS, "open a connection: allow it with --allow-network", local)


def _landlock(writable: Iterable[str], network: bool) -> bool:
    known = version()
    if not known:
        return False
    writes = _WRITE_FILE | _CHANGES | (_REFER if known >= 2 else 0) | (_TRUNCATE if known >= 3 else 0)
    rules = _Rules(writes, _CONNECT if known >= 4 and not network else 0, _SCOPED if known >= 6 else 0)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    libc = _libc()
    ruleset = libc.syscall(_CREATE, ctypes.byref(rules), size, 0)
    if ruleset < 0:
        return False
    try:
        for folder in writable:
            if os.path.isdir(folder):
                _add(ruleset, folder, writes)
        for device in ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/random", "/dev/urandom"):
            if os.path.exists(device):
                _add(ruleset, device, _WRITE_FILE | (_TRUNCATE if known >= 3 else 0))
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            return False
        return int(libc.syscall(_RESTRICT, ruleset, 0)) == 0
    finally:
        os.close(ruleset)


def _add(ruleset: int, path: str, allowed: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _libc().syscall(_ADD, ruleset, _PATH_BENEATH, ctypes.byref(_Beneath(allowed, handle)), 0)
    finally:
        os.close(handle)


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


# A fork alone stays under these hooks.
_STARTS = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.spawn", "ctypes.dlsym")
_OF_LIBC = ("system", "popen", "execv", "execve", "execvp", "execl", "execlp", "posix_spawn", "posix_spawnp")
_CONNECTS = ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo")


Local = Callable[[str, tuple[Any, ...]], bool]


def _refuse(events: tuple[str, ...], what: str, local: Local | None = None) -> None:
    allowed = local or _is_library

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in events and not allowed(event, args):
            raise PermissionError(f"a trial run may not {what}")

    sys.addaudithook(hook)


def _is_library(event: str, args: tuple[Any, ...]) -> bool:
    """Functions of libraries reach nothing outside."""
    return event == "ctypes.dlsym" and args[1] not in _OF_LIBC


def _is_own(event: str, args: tuple[Any, ...]) -> bool:
    """A trial leads a process group, in which its children are."""
    number = args[0]
    if number in (0, os.getpid()):
        return True
    try:
        return number > 0 and (os.getpgid(number) == os.getpgrp() or _is_below(number))
    except OSError:
        return True  # there is none: the program shall hear that


def _is_below(number: int) -> bool:
    """Whether it descends from this process."""
    while number > 1:
        with open(f"/proc/{number}/stat", "rb") as file:
            number = int(file.read().rpartition(b")")[2].split()[1])
        if number == os.getpid():
            return True
    return False


def _is_local(event: str, args: tuple[Any, ...], scratch: str) -> bool:
    """Sockets between processes of this trial: a rendezvous, or a path in its copy."""
    if event == "socket.getaddrinfo":
        return args[0] in (None, "", "localhost", "127.0.0.1", "::1", socket.gethostname())
    address = args[1] if len(args) > 1 else None
    if isinstance(address, (str, bytes)):
        name = os.fsdecode(address)
        inside = os.path.join(os.path.realpath(scratch), "")
        return (
            not name
            or (name.startswith("\0") and event == "socket.bind")
            or (os.path.realpath(name).startswith(inside))
        )
    if not isinstance(address, tuple) or not address:
        return True
    return str(address[0]) in ("", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::")
