"""What a program sees under torch's names while the taps are on: what it would see without them."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import pytest
import torch
from torch.overrides import TorchFunctionMode

import gradmend

T = torch.Tensor


@contextmanager
def installed() -> Iterator[None]:
    gradmend.install()
    try:
        yield
    finally:
        gradmend.uninstall()


CONTEXTS: dict[str, Callable[[], Any]] = {
    "watch": gradmend.watch,
    "heal": gradmend.heal,
    "install": installed,
}
every = pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)


def _names() -> list[Any]:
    """Looked up when it is called, as a program does."""
    return [
        *(
            torch.stack,
            torch.cat,
            torch.add,
            torch.ones,
            torch.relu_,
            torch.asarray,
            torch.nn.functional.gelu,
        ),
        *(T.add_, T.__setitem__, T.unbind, T.split, T.detach, T.numpy, T.set_, T.__ipow__, T.detach_),
    ]


BEFORE = _names()
TABLE = {function: number for number, function in enumerate(BEFORE)}


class Seeing(torch.Tensor):
    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Mode(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def _calls(t: torch.Tensor) -> None:
    torch.stack([t, t])
    torch.add(input=t, other=1)
    t.add_(1)
    t += 1
    t -= 1
    t *= 2
    t **= 2
    t /= 2
    t[0] = 1
    t.unbind()
    t.split(1)
    torch.relu_(t)
    t.detach()
    torch.nn.functional.gelu(t)


def _seen() -> tuple[list[Any], list[Any]]:
    Seeing.seen = []
    _calls(torch.ones(3).as_subclass(Seeing))
    with Mode() as mode:
        _calls(torch.ones(3))
    return Seeing.seen, mode.seen


@every
def test_a_torch_function_is_given_the_same_functions(context: Callable[[], Any]) -> None:
    plain = _seen()
    with context():
        inside = _seen()
    for was, now in zip(plain, inside, strict=True):
        assert [f.__name__ for f in now] == [f.__name__ for f in was]
        assert now == was and list(map(hash, now)) == list(map(hash, was))


@every
def test_it_is_given_the_very_object_under_the_name(context: Callable[[], Any]) -> None:
    with context():
        for function, call in (
            (torch.stack, lambda t: torch.stack([t, t])),
            (torch.cat, lambda t: torch.cat((t, t))),
            (torch.Tensor.add_, lambda t: t.add_(1)),
            (torch.Tensor.mul_, lambda t: t.__imul__(1)),
            (torch.Tensor.__setitem__, lambda t: t.__setitem__(0, 1)),
            (torch.Tensor.detach, lambda t: t.detach()),
        ):
            Seeing.seen = []
            call(torch.ones(2).as_subclass(Seeing))
            assert any(f is function for f in Seeing.seen), function


@every
def test_tables_made_before_and_inside_find_them(context: Callable[[], Any]) -> None:
    with context():
        now = _names()
        assert [TABLE[f] for f in now] == list(range(len(now)))
        inside = dict.fromkeys(now)
        assert all(f in inside for f in BEFORE)
    assert all(f in inside for f in _names())
    assert all(a is b for a, b in zip(_names(), BEFORE, strict=True))


@every
def test_unsupported_calls_fail_in_pytorchs_words(context: Callable[[], Any]) -> None:
    class Refusing(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_: Any) -> Any:
            return NotImplemented

    def words(call: Callable[[torch.Tensor], Any]) -> str:
        with pytest.raises(TypeError) as told:
            call(torch.ones(2).as_subclass(Refusing))
        return str(told.value).splitlines()[0]

    calls = [
        lambda t: t.add_(1),
        lambda t: t.__setitem__(0, 1),
        lambda t: torch.stack([t]),
        lambda t: torch.relu_(t),
    ]
    plain = list(map(words, calls))
    with context():
        assert list(map(words, calls)) == plain


DEVICE = """
import contextlib, torch, gradmend

def made():
    with torch.device("meta"):
        return {str(f.device) for f in (torch.ones(3), torch.empty(3), torch.arange(3), torch.nn.Linear(2, 2).weight)}

if "CONTEXT" == "install":
    gradmend.install()
with contextlib.nullcontext() if "CONTEXT" == "install" else gradmend.CONTEXT():
    assert made() == {"meta"}, made()
assert made() == {"meta"}, made()
with gradmend.watch():
    torch.set_default_device("meta")
    assert torch.zeros(2).device.type == "meta"
"""


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_device_context_first_used_inside(context: str) -> None:
    text = DEVICE.replace("CONTEXT", context)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@every
def test_pickles_and_copies(context: Callable[[], Any]) -> None:
    plain = [pickle.dumps(f) for f in BEFORE if f is not T.__ipow__]
    with context():
        names = [f for f in _names() if f.__name__ != "pow_"]  # torch has no name for that one
        assert all(pickle.loads(pickle.dumps(f)) == f for f in names)
        assert all(copy.deepcopy(f) is f for f in names)
        assert all(pickle.loads(one) == f for one, f in zip(plain, names, strict=True))
        torch.save({"update": torch.Tensor.add_}, io.BytesIO())


@every
def test_a_graph_traced_inside_is_written_down_afterwards(context: Callable[[], Any]) -> None:
    def body(x):  # type: ignore[no-untyped-def]  # torch.fx would keep annotations
        y = torch.cat([x, torch.relu_(x)]).mul_(2)
        y += 1
        return torch.nn.functional.gelu(y)

    plain = torch.fx.symbolic_trace(body)
    with context():
        inside = torch.fx.symbolic_trace(body)
        code = inside.code
    inside.recompile()
    assert inside.code == code == plain.code
    assert [node.target for node in inside.graph.nodes] == [node.target for node in plain.graph.nodes]
    copied = pickle.loads(pickle.dumps(inside))
    assert torch.equal(copied(torch.ones(2)), plain(torch.ones(2)))


def test_nothing_stays_on_the_class_that_pytorch_looks_at() -> None:
    home: Any = torch._C._VariableFunctions
    before = home.stack, home.relu_, home.ones
    with gradmend.watch():
        assert home.stack is torch.stack and home.stack is not before[0]
    assert (home.stack, home.relu_, home.ones) == before and home.stack is torch.stack is before[0]
    with nullcontext():
        torch.stack([torch.ones(2)])
