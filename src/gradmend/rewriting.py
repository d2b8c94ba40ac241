"""The user's files, written anew: whole or not at all, only over what was read, with their mode, owner, links and other names."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile


class Changed(Exception):
    """The file no longer holds what was read."""


class Rewrite:
    """A file's new content, ready beside it. `put` makes it the file's; `drop` throws it away."""

    def __init__(self, file: str, before: bytes, content: bytes) -> None:
        """Raises OSError, and Changed."""
        self.file = file
        self._target = os.path.realpath(file)
        self._before = before
        if not os.access(self._target, os.W_OK):  # a rename would not ask
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), file)
        handle, self._scratch = tempfile.mkstemp(dir=os.path.dirname(self._target), prefix=".gradmend-")
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            self._whole = self._alike()
            self._same()
        except BaseException:
            self.drop()
            raise

    def put(self) -> None:
        """Raises OSError, and Changed; the file is as it was then."""
        try:
            self._same()
            if self._whole:
                os.replace(self._scratch, self._target)
            else:
                shutil.copyfile(self._scratch, self._target)
        finally:
            self.drop()

    def take_back(self) -> None:
        with open(self._target, "wb") as out:
            out.write(self._before)

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._scratch)

    def _alike(self) -> bool:
        """Whether the new file can take the old one's place: same mode and owner, and no other name that would keep the old."""
        was = os.stat(self._target)
        shutil.copymode(self._target, self._scratch)
        now = os.stat(self._scratch)
        if (was.st_uid, was.st_gid) != (now.st_uid, now.st_gid):
            try:
                os.chown(self._scratch, was.st_uid, was.st_gid)
            except OSError:
                return False
        return was.st_nlink == 1

    def _same(self) -> None:
        with open(self._target, "rb") as now:
            if now.read() != self._before:
                raise Changed(self.file)
