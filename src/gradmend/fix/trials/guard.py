"""A trial run may write only inside its scratch copy: Python's audit events say what it is about to touch.

Files of the scratch copy are links to the user's until something writes to them; then they become copies.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

_CHANGES = {
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.utime",
    "os.setxattr",
    "os.removexattr",
}
_DEVICES = frozenset({f"/dev/{name}" for name in ("null", "zero", "full", "tty", "random", "urandom")})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Guard:
    def __init__(self, scratch: str) -> None:
        self.scratch = os.path.realpath(scratch)
        self._busy = False
        self.own_memory = False  # /dev/shm is the trial's
        self._made: set[str] = set()  # files of shared memory that it made

    def install(self) -> None:
        sys.addaudithook(self._hook)
        import torch.serialization

        serialization: Any = torch.serialization

        # torch.save opens its file in C++, where no audit event is raised (seen on 2.13).
        plain = serialization._open_zipfile_writer_file.__init__

        def init(writer: Any, name: Any, *rest: Any, **named: Any) -> None:
            self.check(name)
            plain(writer, name, *rest, **named)

        serialization._open_zipfile_writer_file.__init__ = init

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self._busy:
            return
        if event == "open":
            path, mode, flags = (*args, None, 0)[:3]
            wants = any(c in mode for c in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITES)
            if wants and not isinstance(path, int):
                self.check(path)
        elif event in _CHANGES and args:
            for path in args[:2] if event in ("os.rename", "os.link") else args[:1]:
                if not isinstance(path, int):
                    self.check(path)

    def check(self, path: Any) -> None:
        """Raise unless the path is in the scratch copy; make it the run's own if it is a link there."""
        if path is None or isinstance(path, int) or not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.fsdecode(path)
        at = os.path.abspath(name)
        if at.startswith("/proc/self/fd/"):
            at = os.path.realpath(at)  # another name of an open file
            if not at.startswith("/"):
                return  # a pipe or a socket
        if at in _DEVICES or (at.startswith("/dev/") and not at.startswith("/dev/shm/")):
            return
        if at.startswith("/dev/shm/") and (self.own_memory or at in self._made or not os.path.lexists(at)):
            self._made.add(at)
            return
        self._busy = True
        try:
            inside = os.path.join(os.path.realpath(self.scratch), "")
            lexical = os.path.join(os.path.realpath(os.path.dirname(at)), os.path.basename(at))
            if at.startswith(inside) and not lexical.startswith(inside):
                self._own(Path(at).parent)
                lexical = os.path.join(os.path.realpath(os.path.dirname(at)), os.path.basename(at))
            if not lexical.startswith(inside):
                raise PermissionError(f"a trial run may not write outside its scratch copy: {name}")
            if os.path.islink(lexical):
                self._own(Path(lexical))
        finally:
            self._busy = False

    def _own(self, path: Path) -> None:
        """Turn the nearest linked ancestor (or the path itself) into a real directory or file."""
        chain = [path, *path.parents]
        for step in reversed([p for p in chain if str(p).startswith(self.scratch)]):
            if not step.is_symlink():
                continue
            source = step.resolve()
            step.unlink()
            if source.is_dir():
                step.mkdir()
                for entry in source.iterdir():
                    (step / entry.name).symlink_to(entry)
            elif source.exists():
                shutil.copy2(source, step)
