"""torch.compile stops with PyTorch's in-place error while it traces: that frame runs as the Python that it is instead.

Its conflict is then met, told or healed at the user's own line. A warning at the function's line says so, once.
"""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

from gradmend.capture.ledger import scopes
from gradmend.capture.taps import caches
from gradmend.errors import GradmendWarning

# The errors of this family, as PyTorch words them (2.13 to 2.15).
_FAMILY = re.compile(
    r"modified by an inplace operation|is being modified inplace|is being used in an in-place operation|"
    r"arguments don't support automatic differentiation|Can't detach views in-place"
)
_DYNAMO = "torch._dynamo.convert_frame"
_plain_convert: Any = None
_told: set[Any] = set()


def _convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return _plain_convert(self, frame, *args, **kwargs)
    except RuntimeError as error:
        if scopes.current() is None or not _FAMILY.search(str(error)):
            raise
        code = frame.f_code
        if code not in _told:
            _told.add(code)
            warnings.warn_explicit(
                f"gradmend: `{code.co_name}` can't be compiled: PyTorch refuses an in-place operation in it; "
                "it runs as plain Python here",
                GradmendWarning,
                code.co_filename,
                code.co_firstlineno,
            )
        return sys.modules[_DYNAMO].ConvertFrameReturn()


def arm() -> None:
    """Now, or when the program has imported Dynamo."""
    caches.after_dynamo.append(_arm_dynamo)
    _arm_dynamo()


def _arm_dynamo() -> None:
    global _plain_convert
    module = sys.modules.get(_DYNAMO)
    if module is not None and _plain_convert is None:
        _plain_convert = module.ConvertFrame.__call__
        module.ConvertFrame.__call__ = _convert


def disarm() -> None:
    global _plain_convert
    caches.after_dynamo.remove(_arm_dynamo)
    _told.clear()
    if _plain_convert is not None:
        sys.modules[_DYNAMO].ConvertFrame.__call__ = _plain_convert
        _plain_convert = None
