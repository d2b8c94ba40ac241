"""What the program calls a tensor, found where it lives: variables and modules of the frames that run now.

A source line says `model(x)`; only the running program knows that the overwritten weight is `model.trunk.weight`.
Looked up while the story is told, in the unpack hook, when the caller of backward() is still on the stack.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from gradmend.capture.ledger.composites import parts_of
from gradmend.capture.sites import is_user

_storage_of = torch._C.TensorBase.untyped_storage
_MOST_FRAMES = 8
_MOST_NAMES = 400  # a frame with more variables than that is no place to search
_MOST_TENSORS = 20_000
_MOST_ITEMS = 100


def holder(handle: torch.Tensor) -> str | None:
    """ "trunk.weight", "self.net.0.bias", "state": the shortest name a user's frame has for this memory."""
    try:
        key = _storage_of(handle)._cdata
    except RuntimeError:
        return None
    for frame in _user_frames():
        # Of several in one storage (all weights in one flat tensor) the one that lies just there.
        found = [
            (not _same_place(t, handle), len(name), name)
            for name, t in _named_in(frame, key, shape_of(handle))
        ]
        if found:
            return min(found)[2]
    return None


def _same_place(t: torch.Tensor, handle: torch.Tensor) -> bool:
    if t.layout is not torch.strided or t.is_nested or handle.is_nested:
        return False
    return t.storage_offset() == handle.storage_offset() and t.numel() == handle.numel()


def lies_in(t: torch.Tensor, handle: torch.Tensor) -> bool:
    """Whether the memory of the one is that of the other."""
    try:
        return _lies_at(t, _storage_of(handle)._cdata)
    except RuntimeError:
        return False


def shape_of(t: torch.Tensor) -> tuple[int, ...] | None:
    """A nested tensor has none."""
    return None if t.is_nested else tuple(t.shape)


def _user_frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    seen = 0
    while frame is not None and seen < _MOST_FRAMES:
        if is_user(frame.f_code):
            seen += 1
            yield frame
        frame = frame.f_back


_Named = tuple[str, torch.Tensor]


def _named_in(frame: FrameType, key: int, shape: tuple[int, ...] | None) -> Iterator[_Named]:
    spaces = [frame.f_locals] if frame.f_locals is frame.f_globals else [frame.f_locals, frame.f_globals]
    for space in spaces:
        if len(space) > _MOST_NAMES:
            continue
        for name, value in list(space.items()):
            if name.startswith("__"):
                continue
            if isinstance(value, torch.Tensor):
                # A view of the memory goes by other names too; only the tensor itself, its transpose, or the sparse
                # tensor that it is a part of, is meant.
                same = sorted(shape_of(value) or ()) == sorted(shape or ())
                if (same or value.layout is not torch.strided) and _lies_at(value, key):
                    yield name, value
            elif isinstance(value, torch.nn.Module):
                yield from _in_module(name, value, key)
            else:
                yield from _in_object(name, value, key)


def _in_object(name: str, value: Any, key: int) -> Iterator[_Named]:
    """`self.critic` of a trainer, `nets["critic"]`, `critics[0]`: one step into what holds modules and parameters."""
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict) and len(value) <= _MOST_ITEMS:
        inner = [(f"{name}[{k!r}]", v) for k, v in value.items()]
    elif isinstance(value, (list, tuple)) and len(value) <= _MOST_ITEMS:
        inner = [(f"{name}[{i}]", v) for i, v in enumerate(value)]
    elif name == "self" or type(value).__module__ == "__main__":
        inner = [(f"{name}.{k}", v) for k, v in list(getattr(value, "__dict__", {}).items())[:_MOST_NAMES]]
    for path, found in inner:
        if isinstance(found, torch.nn.Module):
            yield from _in_module(path, found, key)
        elif isinstance(found, torch.nn.Parameter) and _lies_at(found, key):
            yield path, found


def _in_module(name: str, module: torch.nn.Module, key: int) -> Iterator[_Named]:
    for count, (path, tensor) in enumerate(_tensors(module)):
        if count > _MOST_TENSORS:
            return
        if _lies_at(tensor, key):
            yield f"{name}.{path}", tensor


def _tensors(module: torch.nn.Module) -> Iterator[_Named]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _lies_at(tensor: Any, key: int) -> bool:
    try:
        return any(_storage_of(part)._cdata == key for part in parts_of(tensor))
    except RuntimeError:
        return False
