"""install(): the flight recorder. Writes go into a bounded ring, and PyTorch's own error gets its story.

The same ear for failing backwards serves watch() and heal(): a second backward, a leaf written, and the other
errors that PyTorch raises itself are told by the line that caused them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from gradmend.capture import recorder
from gradmend.capture.graph import calls, carriers
from gradmend.capture.hooks import backward_calls
from gradmend.capture.ledger import scopes
from gradmend.capture.taps import switch
from gradmend.errors import attach, attached, unexplained
from gradmend.frames import leave_out_ours
from gradmend.model import Conflict
from gradmend.own_imports import own_imports

_hearers = 0
_installed = False
_hook = sys.__excepthook__


def hear_backwards() -> None:
    global _hearers
    _hearers += 1
    if _hearers == 1:
        backward_calls.arm(_failed)
        backward_calls.watchers.append(carriers.watch)


def ignore_backwards() -> None:
    global _hearers
    _hearers -= 1
    if _hearers == 0:
        backward_calls.watchers.remove(carriers.watch)
        carriers.forget()
        backward_calls.disarm()
        backward_calls.forget()


def _failed(call: calls.BackwardCall, error: BaseException, roots: Any) -> None:
    if not isinstance(error, RuntimeError) or attached(error) is not None:
        return
    conflict = _story_of(call, error, roots)
    if conflict is not None:
        from gradmend.api.watching import words_of

        attach(error, conflict, words_of(conflict))


def _story_of(call: calls.BackwardCall, error: RuntimeError, roots: Any) -> Conflict | None:
    with own_imports():
        from gradmend.story.failures.diagnosing import diagnose

        scope = scopes.current()
        healing = scope is not None and scope.policy == "heal" and not scope.retain
        conflict = diagnose(error, history=calls.history, roots=roots, at=call.site, healing=healing)
        ring = recorder.current()
        if conflict is None and ring is not None:
            from gradmend.story.failures.postmortem import postmortem

            conflict = postmortem(error, roots, ring, at=call.site)
    return conflict


def install() -> None:
    """From now on, add the story to PyTorch's own in-place errors. `GRADMEND=1` in the environment does the same."""
    global _installed, _hook
    with switch.lock:
        if _installed:
            return
        switch.arm()
        recorder.start()
        hear_backwards()
        _hook = sys.excepthook
        sys.excepthook = _uncaught
        _installed = True


def uninstall() -> None:
    """Put every patched name back as it was."""
    global _installed
    with switch.lock:
        if not _installed:
            return
        if sys.excepthook is _uncaught:
            sys.excepthook = _hook
        ignore_backwards()
        recorder.stop()
        switch.disarm()
        _installed = False


def programs_hook() -> Callable[..., object]:
    """The program's own `sys.excepthook`, below ours where that is set; Python's, where the program has none."""
    return _hook if sys.excepthook is _uncaught else sys.excepthook


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Errors that PyTorch raises in forward pass no ear of ours: they get their story when nobody catches them."""
    explain_forward(error)
    leave_out_ours(error)
    _hook(kind, error, error.__traceback__)


def explain_forward(error: BaseException | None) -> None:
    """Attach the story to PyTorch's own error of this family, raised outside of backward."""
    if not isinstance(error, RuntimeError | AttributeError) or attached(error) is not None:
        return
    try:
        with own_imports():
            from gradmend.api.watching import words_of
            from gradmend.story.failures.diagnosing import diagnose

            conflict = diagnose(error)
            if conflict is not None:
                attach(error, conflict, words_of(conflict))
    except Exception as ours:
        unexplained(error, ours)
