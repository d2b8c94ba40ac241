"""Every exception Gradmend raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradmend.model import Conflict


class GradmendError(RuntimeError):
    """The base: a RuntimeError, so that code which catches PyTorch's own error still does."""


class ConflictError(GradmendError):
    """A value that backward needs has changed. `conflict` holds the facts, the message the whole story."""

    def __init__(self, message: str, conflict: Conflict) -> None:
        said = pytorch_says(conflict)
        super().__init__(f"{said}\n{message}" if said else message)
        self.conflict = conflict

    def __reduce__(self) -> tuple[Any, ...]:
        """It crosses processes: pools pickle what a worker raises."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[ConflictError], args: tuple[Any, ...], state: dict[str, Any]) -> ConflictError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


def pytorch_says(conflict: Conflict) -> str:
    """PyTorch's own sentence for it, so that a test's `match=` and a search engine find it; nothing where it is silent."""
    if conflict.kind != "error" or conflict.saved is None:
        return ""
    return refusal(conflict.saved.tensor.dtype, conflict.saved.tensor.shape, conflict.versions)


def refusal(dtype: str, shape: Sequence[int], versions: Sequence[int] | None = None) -> str:
    """`versions`: at which the tensor is, and the one that was saved."""
    said = (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[torch.{_TYPES.get(dtype, dtype)} {list(shape)}]"
    )
    if versions is None:
        return said
    return f"{said} is at version {versions[0]}; expected version {versions[1]} instead."


# What PyTorch calls a dtype in that sentence.
_TYPES = {
    "float32": "FloatTensor",
    "float64": "DoubleTensor",
    "float16": "HalfTensor",
    "bfloat16": "BFloat16Tensor",
    "int64": "LongTensor",
    "int32": "IntTensor",
    "int16": "ShortTensor",
    "int8": "CharTensor",
    "uint8": "ByteTensor",
    "bool": "BoolTensor",
    "complex64": "ComplexFloatTensor",
    "complex128": "ComplexDoubleTensor",
}


# PyTorch's words where backward asks for a tensor that was detached in place.
DETACHED = (
    "Trying to use a saved tensor that has been detached in-place, i.e. with .detach_().This is not supported, please use "
    "out-of-place `.detach()` instead"
)


def attach(error: BaseException, conflict: Conflict, story: str) -> None:
    """Add a story to an exception that is not ours: shown with it, and there for programs to read."""
    error.__gradmend__ = conflict  # type: ignore[attr-defined]
    error.add_note(story)


def unexplained(error: BaseException, ours: Exception) -> None:
    """A mistake of ours must not take the place of the error that it should explain: it becomes a note of it."""
    error.add_note(f"gradmend could not explain this error: {type(ours).__name__}: {ours}")


def attached(error: BaseException) -> Conflict | None:
    """The conflict behind an exception, ours or PyTorch's own."""
    if isinstance(error, ConflictError):
        return error.conflict
    conflict: Conflict | None = getattr(error, "__gradmend__", None)
    return conflict


class BudgetError(GradmendError):
    """Healing would keep more bytes than the budget allows."""


class GradmendWarning(UserWarning):
    """Something that Gradmend can't see or can't promise here."""


class UsageError(GradmendError, ValueError):
    """Bad input: one clear line; of a command, exit code 2."""
