"""dry_run(): the verdicts of watch() on fake tensors: no data, no compute, no memory.

A Write that meets what an op saved is found by the bytes that both cover, so a model of any size is checked in seconds.
What needs values is not decided: whether a Write left the value as it was, edits outside autograd whose value
is used again, memory that numpy shares.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from gradmend.api.guard import Guard
from gradmend.api.watching import Watching
from gradmend.errors import ConflictError, UsageError, attached
from gradmend.model import Session

NEEDS_VALUES = (
    "whether a write left the value as it was (then PyTorch refuses it, and the gradient is right)",
    "values edited outside autograd and used again (GM210)",
    "memory that numpy and others share (GM202)",
)
_NOTE = "found without values: a real run tells whether the write changed the value"


def dry_run(fn: Callable[..., Any], *inputs: Any, **kwargs: Any) -> Session:
    """Run a module or a function, and a backward from what it returns, on fake copies of its tensors.

    A function that returns nothing with a gradient is taken for a whole training step, with its own backward. The
    Session's `outcome` is "clean", "conflict", or "failed" where the program asked for a value; nothing is raised.

    >>> import torch
    >>> dry_run(lambda x: x.exp().add_(1), torch.ones(3, requires_grad=True)).outcome
    'conflict'
    """
    mode = fake_mode()

    def fake(given: Any) -> Any:
        return faked(given, mode) if isinstance(given, torch.nn.Module) else _fake(given, mode)

    fn, inputs, kwargs = fake(fn), *tree_map(fake, (inputs, kwargs))
    return run_fake(mode, lambda: fn(*inputs, **kwargs))


def fake_mode() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)  # constants of the program are only read


def _fake(t: Any, mode: Any) -> Any:
    if not isinstance(t, torch.Tensor) or hasattr(t, "fake_mode"):
        return t
    made = mode.from_tensor(t)
    return made if made.requires_grad == t.requires_grad else made.requires_grad_(t.requires_grad)


def faked(module: torch.nn.Module, mode: Any) -> torch.nn.Module:
    """A copy of a module with fake parameters and buffers: nothing of the real ones is copied."""
    memo = {id(t): _fake(t, mode) for t in (*module.parameters(), *module.buffers())}
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise UsageError(f"can't copy {type(module).__name__} for a dry run: {error}") from None


def run_fake(mode: Any, step: Callable[[], Any]) -> Session:
    # heal() goes on where watch() would stop: one run finds all.
    with Watching("heal", aloud=False) as session:
        guard = Guard()
        try:
            with mode, guard:
                outputs = [t for t in tensors_in(step()) if t.requires_grad]
                if outputs:
                    torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
        except ConflictError:
            pass  # one that no healing passes over: it is in the session
        except Exception as error:
            _failed(session, error)
        guard.put_back()
    if guard.reached is not None:  # also where the program caught it
        _failed(session, guard.reached)
    if session.outcome == "healed":
        session.outcome = "conflict"
    session.conflicts[:] = [replace(c, notes=(*c.notes, _NOTE), healed_bytes=0) for c in session.conflicts]
    session.stats["a dry run does not decide"] = "; ".join(NEEDS_VALUES)
    return session


def tensors_in(result: Any) -> Iterator[torch.Tensor]:
    """Those that a function returned, in containers and dataclasses too."""
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif hasattr(leaf, "__dataclass_fields__"):
            yield from tensors_in([getattr(leaf, name) for name in leaf.__dataclass_fields__])


def _failed(session: Session, error: Exception) -> None:
    told = attached(error)
    if told is not None:
        session.outcome = "conflict"
        if all(told is not c for c in session.conflicts):
            session.conflicts.append(told)
        return
    from gradmend.running.runner import _user_line

    frame = _user_line(error.__traceback__) or (None, None)
    words = str(error) or type(error).__name__
    if _asks_for_values(error):
        words = f"the dry run stopped where the program asks for a value that only a real run has ({words})"
    session.outcome = "failed"
    session.error = {"type": type(error).__name__, "message": words, "file": frame[0], "line": frame[1]}


def _asks_for_values(error: Exception) -> bool:
    names = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
    return type(error).__name__ in names or "meta tensors" in str(error) or "FakeTensor" in str(error)
