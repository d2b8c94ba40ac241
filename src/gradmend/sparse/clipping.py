"""torch.nn.utils.clip_grad_norm_, clip_grad_value_ and get_total_norm with SparseTensors among the parameters.

They hand gradients to a C++ function that sorts them by device and takes Tensors alone. That function gets what a
sparse gradient stands for: the gradient of the tensor that S was made from, in whose memory they then clip.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.nn.utils import clip_grad

from gradmend.sparse.tensor import SparseTensor

_NAME = "_group_tensors_by_device_and_dtype"


def install() -> None:
    """Where torch has no such function, its own error stays."""
    plain = getattr(clip_grad, _NAME, None)
    if plain is None or (hasattr(plain, "__wrapped__") and plain.__module__ == __name__):
        return

    @functools.wraps(plain, assigned=("__name__", "__doc__"))
    def group(lists: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(t, SparseTensor) for row in lists for t in row):
            lists = [[t._behind if isinstance(t, SparseTensor) else t for t in row] for row in lists]
        return plain(lists, *args, **kwargs)

    setattr(clip_grad, _NAME, group)
