"""torch.utils.checkpoint: which generator runs a region without re-entrant autograd, and how it is handed the inputs.

Until 2.13 the region's inputs follow the settings of checkpoint(); since 2.14 they come as a tuple, to a function of
another name.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch.utils.checkpoint as _checkpoint

_OLD, _NEW = "_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl"
GENERATOR = _NEW if hasattr(_checkpoint, _NEW) else _OLD
generator: Any = getattr(_checkpoint, GENERATOR)

_settings = [
    name
    for name, parameter in inspect.signature(generator).parameters.items()
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
]


def inputs_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The region's positional inputs, of what the generator is called with (its function left out)."""
    if GENERATOR == _NEW:
        return args[0] if args else kwargs["args"]
    return args[len(_settings) - 1 :]


def homes() -> Iterator[ModuleType]:
    """The modules that hold the generator by name."""
    yield _checkpoint
    composable = sys.modules.get("torch.distributed._composable.checkpoint_activation")
    if composable is not None and hasattr(composable, GENERATOR):
        yield composable


# Since 2.14 a checkpoint asks which hooks the *user* has on, and warns of them: ours are none of the user's.
USERS_HOOKS = "_current_user_saved_tensors_hooks"
users_hooks: Any = getattr(_checkpoint, USERS_HOOKS, None)
