"""The compiled part, where it could be built: native/ has its source, and what it is made of.

Without it everything works the same, only slower; `GRADMEND_PURE=1` does without it, 0 or nothing does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from gradmend.form import wants_pure

compiled: Any = None
if not wants_pure():
    try:
        compiled = import_module("gradmend.capture._fast")
    except ImportError:  # no compiler where it was installed, or another Python
        pass

if compiled is not None:
    _Base = torch._C.TensorBase  # the names on torch.Tensor may be tapped
    _properties = [_Base.__dict__[name] for name in ("nbytes", "_version", "grad")]
    compiled.know_tensors(_Base.is_contiguous, _Base.data_ptr, *_properties)
    _Memory: Any = torch._C.StorageBase
    _of_memory = _Memory.__dict__["_cdata"], _Memory.nbytes, _Memory.data_ptr, _Memory.resizable
    compiled.know_storages(_Base.untyped_storage, *_of_memory)
