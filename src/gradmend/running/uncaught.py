"""An exception that ends the program, told as the interpreter tells it: by the program's own `sys.excepthook`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from gradmend.errors import ConflictError, attached, pytorch_says
from gradmend.frames import leave_out_ours
from gradmend.own_imports import own_imports
from gradmend.running.aloud import put


def raised_by(call: Callable[[], object]) -> BaseException | None:
    """Given back, not handled inside `except`: there the next error would get this one as its context."""
    try:
        call()
    except BaseException as error:
        return error
    return None


def exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    put(str(leaving.code))
    return 1


def show(error: BaseException) -> int | None:
    """Tell it, without the frames that are ours. The exit code, where the program's hook itself leaves."""
    leave_out_ours(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    from gradmend.api.installing import programs_hook

    hook = programs_hook()
    sys.audit("sys.excepthook", hook, type(error), error, error.__traceback__)
    if hook is sys.__excepthook__:
        _print(error)
        return None
    failure = raised_by(lambda: hook(type(error), error, error.__traceback__))
    if isinstance(failure, SystemExit):
        return exit_code(failure)
    if failure is not None:  # in the words of the interpreter
        leave_out_ours(failure)
        put("Error in sys.excepthook:")
        _print(failure)
        put("\nOriginal exception was:")
        _print(error)
    return None


def _print(error: BaseException) -> None:
    with own_imports():
        if attached(error) is None or error.__cause__ is not None or error.__context__ is not None:
            sys.__excepthook__(type(error), error, error.__traceback__)
            return
        # The story follows in full; the traceback only says how the program got there.
        words = str(error)
        if isinstance(error, ConflictError):
            words = pytorch_says(error.conflict) or "the story follows"
        rows = traceback.extract_tb(error.__traceback__).format()
        put("".join(["Traceback (most recent call last):\n", *rows, f"{type(error).__name__}: {words}"]))
