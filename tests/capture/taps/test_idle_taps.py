"""While nobody listens a tap passes its call on, and a mode is told of it as torch alone would tell it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gradmend.capture.native.loading import edge as compiled
from gradmend.capture.taps import hub, switch


@pytest.fixture
def idle(empty_ledger: None) -> Iterator[None]:
    switch.arm()
    try:
        assert not hub.awake
        yield
    finally:
        switch.disarm()


class Told(TorchFunctionMode):
    """Keeps all that it is told, and does something more of its own."""

    def __init__(self, more: Callable[[], Any] = lambda: None) -> None:
        super().__init__()
        self.told: list[tuple[Any, ...]] = []
        self.more = more

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.told.append((func, types, len(args), kwargs))
        self.more()
        return func(*args, **(kwargs or {}))


def _writes(t: torch.Tensor) -> None:
    t.add_(1)
    t += 1
    t /= 2
    t.addcmul_(t, t, value=0.5)
    t.mul_(other=2)
    t[0] = 1
    t.clamp_(0, 3)
    torch.relu_(t)


def _told() -> tuple[list[tuple[Any, ...]], torch.Tensor]:
    t = torch.zeros(3)
    with Told() as mode:
        _writes(t)
    return mode.told, t


PLAIN = _told()


@pytest.mark.skipif(
    compiled is None, reason="in Python a tap asks for a mode first, and names it the operator"
)
@pytest.mark.usefixtures("idle")
def test_a_mode_is_told_what_torch_would_tell_it() -> None:
    told, t = _told()
    assert told == PLAIN[0]
    assert torch.equal(t, PLAIN[1])


@pytest.mark.usefixtures("idle")
def test_who_looks_a_method_up_finds_the_tap() -> None:
    """What a mode, or whoever torch calls in between, takes from torch.Tensor may write when somebody listens."""
    found: list[Any] = [torch.Tensor.add_]

    def look() -> None:
        found.append(torch.Tensor.add_)

    class Looking(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            look()
            return func(*args, **(kwargs or {}))

    t = torch.zeros(3)
    with Told(look), Told(look):
        look()
        t.add_(1)
        torch.Tensor.add_(t, 1)
    with Looking():
        t.add_(1)
    with Told(look), Looking():
        t.add_(1)
    with pytest.raises(TypeError):
        t.add_("x")
    look()
    assert len(found) > 8
    # Python 3.14 hands out the tap itself where a line is hot, and what it stands for elsewhere.
    assert {id(one.__gradmend_original__) for one in found} == {id(found[0].__gradmend_original__)}
    assert hasattr(found[0], "__gradmend_original__")


@pytest.mark.usefixtures("idle")
def test_another_thread_finds_the_tap() -> None:
    found: list[Any] = []

    class Waiting(TorchDispatchMode):
        """Another thread, under a mode of its own, looks while the call is under way."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            def look() -> None:
                with Told():
                    found.append(torch.Tensor.add_)

            other = threading.Thread(target=look)
            other.start()
            other.join()
            return func(*args, **(kwargs or {}))

    with Waiting():
        torch.zeros(3).add_(1)
    assert all(one is torch.Tensor.add_ for one in found) and found
