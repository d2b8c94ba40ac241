"""dry_run(): the verdicts of watch() on fake tensors: no data, no compute, no memory.

A Write that meets what an op saved is found by the bytes that both cover, so a model of any size is checked in seconds.
What needs values is not decided: whether a Write left the value as it was, edits outside autograd whose value
is used again, memory that numpy shares.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from gradmend.api.guard import Guard
from gradmend.api.watching import Watching
from gradmend.capture.graph.calls import history
from gradmend.errors import ConflictError, UsageError, attached
from gradmend.model import Session
from gradmend.story.failures.scene import error_facts

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

    fn = fake(fn)
    inputs, kwargs = tree_map(fake, (inputs, kwargs))
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
    for name, t in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(t):
            raise UsageError(
                f"{name} of {type(module).__name__} has no shape yet (a lazy module): call the model once on a small real "
                "input, then dry_run() it"
            )
    memo = {id(t): _fake(t, mode) for t in (*module.parameters(), *module.buffers())}
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise UsageError(f"can't copy {type(module).__name__} for a dry run: {error}") from None


def run_fake(mode: Any, step: Callable[[], Any]) -> Session:
    # heal() goes on where watch() would stop: one run finds all.
    with Watching("heal", aloud=False) as session:
        guard, unseen = Guard(), None
        last = history[-1] if history else None
        try:
            with mode, guard, warnings.catch_warnings():
                # Of our looking at addresses, and of the program's: nobody here chose fake tensors.
                warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
                result = step()
                found = list(tensors_in(result))
                outputs = [t for t in found if t.requires_grad]
                ran = bool(history) and history[-1] is not last
                if not found and not ran and (opaque := _opaque(result)):
                    unseen = f"the function returned {opaque}, and no tensor can be seen in it: no backward ran from it"
                if outputs:
                    torch.autograd.backward(*seeded(outputs))
        except ConflictError:
            pass  # one that no healing passes over: it is in the session
        except Exception as error:
            _failed(session, error)
        guard.put_back()
    if guard.reached is not None:  # also where the program caught it
        _failed(session, guard.reached)
    if unseen and session.outcome == "clean":
        words = f"{unseen}; return tensors, in containers or dataclasses"
        session.outcome = "failed"
        session.error = {"type": "UsageError", "message": words, "file": None, "line": None}
    if session.outcome == "healed":
        session.outcome = "conflict"
    session.conflicts[:] = [replace(c, notes=(*c.notes, _NOTE), healed_bytes=0) for c in session.conflicts]
    session.stats["a dry run does not decide"] = "; ".join(NEEDS_VALUES)
    return session


def tensors_in(result: Any) -> Iterator[torch.Tensor]:
    """Those that a function returned, in containers, mappings and dataclasses too."""
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, Mapping):  # a dict's subclass is a leaf to PyTorch
            yield from tensors_in(list(leaf.values()))
        elif hasattr(leaf, "__dataclass_fields__"):
            yield from tensors_in([getattr(leaf, name) for name in leaf.__dataclass_fields__])


def seeded(outputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What a backward starts from, and ones for it; PyTorch makes no ones of a sparse layout."""
    dense = [t if t.layout in (torch.strided, torch.jagged) else t.to_dense() for t in outputs]
    return dense, [torch.ones_like(t) for t in dense]


def _opaque(result: Any) -> str | None:
    """What a result holds is not known of any object, nor of a generator that did not run."""
    plain = (bool, int, float, complex, str, bytes, type(None))
    kinds = (type(leaf) for leaf in tree_leaves(result) if not isinstance(leaf, plain))
    return next((f"an object of type {kind.__name__}" for kind in kinds), None)


def _failed(session: Session, error: Exception) -> None:
    told = attached(error)
    if told is not None:
        session.outcome = "conflict"
        if all(told is not c for c in session.conflicts):
            session.conflicts.append(told)
        return
    words = str(error) or type(error).__name__
    if _asks_for_values(error):
        words = f"the dry run stopped where the program asks for a value that only a real run has ({words})"
    session.outcome = "failed"
    session.error = error_facts(error, words)


def _asks_for_values(error: Exception) -> bool:
    names = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
    return type(error).__name__ in names or "meta tensors" in str(error) or "FakeTensor" in str(error)
