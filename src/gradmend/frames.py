"""Tracebacks as people want them: without the frames that are ours."""

from __future__ import annotations

from types import TracebackType

from gradmend.folder import is_ours


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code.co_filename):
            kept.append(trace)
        trace = trace.tb_next
    return chained(kept)


def leave_out_ours(error: BaseException) -> None:
    """Also from what it was raised from, and from the errors of a group."""
    seen: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        one = rest.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = without_ours(one.__traceback__)
        rest += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            rest += one.exceptions


def chained(entries: list[TracebackType]) -> TracebackType | None:
    """One traceback of these entries, outermost first."""
    made: TracebackType | None = None
    for one in reversed(entries):
        made = TracebackType(made, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return made
