"""What differs between releases of torch, for the sparse half, each asked of torch itself."""

from __future__ import annotations

from typing import Any


def traced_name(func: Any) -> str:
    """The name of one of torch's functions, inside torch.compile too.

    Dynamo 2.15 takes a decorated method's name from its code, which is the decorator's: Tensor.__rsub__ and all its kin
    are called "wrapped" there. What they wrap has its own name.
    """
    name: str = func.__name__
    if name == "wrapped":
        name = func.__wrapped__.__name__
    return name
