"""pytest --gradmend: each test runs under watch(), and a value that backward needs and lost fails it, with the story.

Loaded by every pytest of an environment that has Gradmend, so nothing here imports torch or anything of ours until
a test is to be watched.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

_watched = pytest.StashKey[bool]()
_MARK = "gradmend(on=True, *, paranoid=False, heal=False): run this test under gradmend.watch(), or heal()"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradmend", "gradients that in-place writes break")
    group.addoption(
        "--gradmend",
        action="store_true",
        help="run every test under gradmend.watch(): wrong gradients fail it",
    )
    parser.addini("gradmend", "run every test under gradmend.watch()", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARK)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    wish = _wish(item)
    if wish is None:
        return (yield)
    from gradmend.api.watching import Watching, words_of

    __tracebackhide__ = True
    item.stash[_watched] = True
    with Watching("heal" if wish["heal"] else "watch", paranoid=wish["paranoid"], aloud=False) as session:
        try:
            return (yield)
        finally:
            quiet = [
                c for c in session.conflicts if c.kind == "refused-but-right" or session.outcome == "healed"
            ]
            if quiet:
                told = (words_of(c, healed=c.kind != "refused-but-right") for c in quiet)
                item.add_report_section("call", "gradmend", "\n\n".join(told))


@pytest.hookimpl
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """A failure without the frames that are ours. Here, not where it passes: a unittest.TestCase catches its own."""
    if call.excinfo is None or _watched not in item.stash or item.config.getoption("full_trace", False):
        return
    from gradmend.frames import leave_out_ours

    leave_out_ours(call.excinfo.value)
    if call.excinfo.value.__traceback__ is not None:
        call.excinfo = pytest.ExceptionInfo.from_exception(call.excinfo.value)


def _wish(item: pytest.Item) -> dict[str, bool] | None:
    """What is asked for this test: its own mark, that of its class or module, the option, the ini file."""
    mark = item.get_closest_marker("gradmend")
    if mark is None:
        on = item.config.getoption("gradmend") or item.config.getini("gradmend")
        return {"paranoid": False, "heal": False} if on else None
    try:
        return _read(*mark.args, **mark.kwargs)
    except TypeError as error:
        said = str(error).replace("_read()", "it")
    # Not inside `except`: pytest would show that error too.
    pytest.fail(f"@pytest.mark.gradmend: {said}; it is {_MARK.partition(':')[0]}", pytrace=False)


def _read(on: bool = True, *, paranoid: bool = False, heal: bool = False) -> dict[str, bool] | None:
    return {"paranoid": paranoid, "heal": heal} if on else None
