"""What a program leaves in its folder: checkpoints by their tensors, arrays, and text, for the proof to compare."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

_MOST_FILES = 200
_MOST_BYTES = 64_000_000
_MOST_TEXT = 2_000_000
_TENSORS = (".pt", ".pth", ".ckpt", ".bin", ".tar", ".pkl")
_ARRAYS = (".npy", ".npz")
_OWN = ("__pycache__", ".gradmend")


class Left:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._before = dict(self._files())

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """The folder's own files with their size and time: links are the user's, and unchanged."""
        count = 0
        for home, folders, names in os.walk(self.folder):
            folders[:] = [f for f in folders if f not in _OWN]
            for name in names:
                path = os.path.join(home, name)
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                count += 1
                if count > _MOST_FILES:
                    return
                stat = os.stat(path)
                yield path, (stat.st_size, stat.st_mtime_ns)

    def found(self) -> dict[str, Any]:
        """What is new or changed: the values in a file, by their place in it, or its text; else a digest."""
        kept: dict[str, Any] = {}
        for path, stamp in self._files():
            if self._before.get(path) == stamp or stamp[0] > _MOST_BYTES:
                continue
            name = os.path.relpath(path, self.folder)
            try:
                kept |= {f"{name}{place}": value for place, value in _content(path)}
            except Exception:  # an unknown format under a known ending
                kept[name] = _plain(path)
        return kept


def _content(path: str) -> Iterator[tuple[str, Any]]:
    if path.endswith(_TENSORS):
        yield from _values(torch.load(path, map_location="cpu", weights_only=False), "")
    elif path.endswith(_ARRAYS):
        loaded = np.load(path, allow_pickle=True)
        arrays = dict(loaded) if path.endswith(".npz") else {"": loaded}
        for key, array in arrays.items():
            yield from _values(array, f"[{key!r}]" if key else "")
    else:
        yield "", _plain(path)


def _plain(path: str) -> str:
    with open(path, "rb") as file:
        data = file.read(_MOST_TEXT)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return hashlib.sha256(data).hexdigest()


def _values(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    from gradmend.fix.trials.record import keep

    if isinstance(value, torch.Tensor):
        yield place, keep(value)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        yield place, np.array(value, np.float64)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _values(one, f"{place}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for order, one in enumerate(value):
            yield from _values(one, f"{place}[{order}]")
    elif isinstance(value, (int, float)):
        yield place, np.array(float(value))
    elif isinstance(value, str):
        yield place, value
