"""Every exception Gradmend raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradmend.model import Conflict


class GradmendError(RuntimeError):
    """The base: a RuntimeError, so that code which catches PyTorch's own error still does."""


class ConflictError(GradmendError):
    """A value that backward needs has changed. `conflict` holds the facts, the message the whole story."""

    def __init__(self, message: str, conflict: Conflict) -> None:
        super().__init__(message)
        self.conflict = conflict


class BudgetError(GradmendError):
    """Healing would keep more bytes than the budget allows."""


class UsageError(Exception):
    """Bad input: one clear line, exit code 2."""
