"""Code that was compiled away from our taps, run as the Python that it was written as.

- torch.compile stops with PyTorch's in-place error while it traces: that frame runs eagerly instead, and its conflict is
  met, told or healed at the user's own line.
- A function of torch.jit.script that writes in place is seen by no tap: under heal() its Python runs.

Both are told once, by a warning at the function's line.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from gradmend.capture.ledger import scopes
from gradmend.capture.taps import caches
from gradmend.errors import GradmendWarning

# The errors of this family, as PyTorch words them (2.13 to 2.15).
_FAMILY = re.compile(
    r"modified by an inplace operation|is being modified inplace|is being used in an in-place operation|"
    r"arguments don't support automatic differentiation|Can't detach views in-place"
)
_Scripted: Any = torch.jit.ScriptFunction
_plain_scripted = _Scripted.__dict__["__call__"]
_plain_convert: Any = None
_told: set[Any] = set()


def _tell(code: Any, why: str) -> None:
    if code not in _told:
        _told.add(code)
        warnings.warn_explicit(
            f"gradmend: `{code.co_name}` {why}; it runs as plain Python here",
            GradmendWarning,
            code.co_filename,
            code.co_firstlineno,
        )


# --------------------------------------------------------------------------- torch.compile


def _convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return _plain_convert(self, frame, *args, **kwargs)
    except RuntimeError as error:
        if scopes.current() is None or not _FAMILY.search(str(error)):
            raise
        _tell(frame.f_code, "can't be compiled: PyTorch refuses an in-place operation in it")
        return sys.modules["torch._dynamo.convert_frame"].ConvertFrameReturn()


def _arm_dynamo() -> None:
    global _plain_convert
    module = sys.modules.get("torch._dynamo.convert_frame")
    if module is not None and _armed and _plain_convert is None:
        _plain_convert = module.ConvertFrame.__call__
        module.ConvertFrame.__call__ = _convert


def _disarm_dynamo() -> None:
    global _plain_convert
    if _plain_convert is not None:
        sys.modules["torch._dynamo.convert_frame"].ConvertFrame.__call__ = _plain_convert
        _plain_convert = None


# -------------------------------------------------------------------------- torch.jit.script


def _scripted(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    scope = scopes.current()
    if scope is not None and scope.policy == "heal" and scope.refused is not None and torch.is_grad_enabled():
        source = getattr(self, "_torchdynamo_inline", None)
        if source is not None and _writes(self):
            _tell(source.__code__, "writes in place, and is scripted: nobody sees its writes")
            return source(*args, **kwargs)
    return _plain_scripted(self, *args, **kwargs)


def _writes(function: Any) -> bool:
    known: bool | None = getattr(function, "_gradmend_writes", None)
    if known is None:
        known = any(_is_write(kind) for kind in _kinds(function.inlined_graph))
        function._gradmend_writes = known
    return known


def _is_write(kind: str) -> bool:
    return kind.startswith("aten::") and kind.endswith("_") and not kind.endswith("__")


def _kinds(block: Any) -> Iterator[str]:
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from _kinds(inner)


# ----------------------------------------------------------------------------------- arming

_armed = 0


def arm() -> None:
    global _armed
    _armed += 1
    if _armed == 1:
        _Scripted.__call__ = _scripted
        caches.after_dynamo.append(_arm_dynamo)
        _arm_dynamo()


def disarm() -> None:
    global _armed
    _armed -= 1
    if _armed == 0:
        _Scripted.__call__ = _plain_scripted
        caches.after_dynamo.remove(_arm_dynamo)
        _disarm_dynamo()
        _told.clear()
