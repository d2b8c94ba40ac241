"""The edge in C does what the Python beside it does."""

from __future__ import annotations

import copy
import functools
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modes import Seeing

import gradmend
from gradmend.capture import recorder, sites
from gradmend.capture.native.loading import edge as compiled
from gradmend.capture.taps import hub

TESTS = Path(__file__).parents[2]
needs_it = pytest.mark.skipif(compiled is None, reason="no compiler was found when gradmend was installed")


def both() -> tuple[sites.Raw, sites.Raw]:
    # Both walks start on one line, by two calls.
    quick, plain = compiled.raw_here(), sites._raw_here()
    return quick[:1] + quick[2:], plain[:1] + plain[2:]


def ours(then: Callable[[], Any]) -> Any:
    """Calls on from a line of gradmend's own."""
    words: dict[str, Any] = {}
    own = os.path.join(os.path.dirname(gradmend.__file__), "nowhere.py")
    exec(compile("def call(then):\n    return then()\n", own, "exec"), words)
    return words["call"](then)


def library(then: Callable[[], Any]) -> Any:
    words: dict[str, Any] = {}
    exec(compile("def call(then):\n    return then()\n", "/x/site-packages/lib/a.py", "exec"), words)
    return words["call"](then)


def generated(then: Callable[[], Any]) -> Any:
    return next(then() for _ in range(1))


def awaited(then: Callable[[], Any]) -> Any:
    async def inner() -> Any:
        return then()

    async def outer() -> Any:
        return await inner()

    with pytest.raises(StopIteration) as done:
        outer().send(None)
    return done.value.value


def in_a_class(then: Callable[[], Any]) -> Any:
    class Body:
        found = then()

    return Body.found


def in_a_thread(then: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(then).result()


def traced(then: Callable[[], Any]) -> Any:
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        return then()
    finally:
        sys.settrace(before)


LINKS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "user": lambda then: then(),
    "ours": ours,
    "library": library,
    "generator": generated,
    "coroutine": awaited,
    "class body": in_a_class,
    "called from C": lambda then: functools.reduce(lambda _, once: once(), [then], None),
    "thread": in_a_thread,
    "traced": traced,
}


@needs_it
@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(sorted(LINKS)), max_size=80))
def test_the_walk_finds_the_same_lines(chain: list[str]) -> None:
    def call(at: int) -> tuple[sites.Raw, sites.Raw]:
        return LINKS[chain[at]](lambda: call(at + 1)) if at < len(chain) else both()

    quick, plain = call(0)
    assert quick == plain


@needs_it
@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.sampled_from(sorted(LINKS)), max_size=9), min_size=2, max_size=4))
def test_a_function_with_several_callers_is_found_below_each(ways: list[list[str]]) -> None:
    """A walk expects the chain that it met last: here it is another one each time, longer or shorter."""

    def call(chain: list[str], at: int) -> tuple[sites.Raw, sites.Raw]:
        return LINKS[chain[at]](lambda: call(chain, at + 1)) if at < len(chain) else both()

    for _ in range(3):
        for chain in ways:
            quick, plain = call(chain, 0)
            assert quick == plain


@needs_it
def test_a_code_object_met_once_is_kept() -> None:
    """A site names code by its id, so the code must outlive the function."""

    def gone() -> sites.Raw:
        words: dict[str, Any] = {"raw_here": compiled.raw_here}
        exec(compile("def f():\n    return raw_here()\n", "<gone>", "exec"), words)
        return words["f"]()

    raw = gone()
    gc.collect()
    assert sites.resolve(raw).frames[0].file == "<gone>"


class Named(torch.Tensor):
    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


@needs_it
def test_a_tap_calls_as_the_method_does() -> None:
    plain, setitem = torch.Tensor.add_, torch.Tensor.__setitem__
    gradmend.install()
    try:
        assert type(vars(torch.Tensor)["add_"]) is compiled.Tap
        t = torch.zeros(3)
        assert t.add_(1, alpha=2) is t and t.tolist() == [2.0] * 3
        t += 1
        bound = t.mul_
        assert bound(other=2).tolist() == [6.0] * 3
        for wrong in (
            lambda: t.add_(),
            lambda: t.add_("x"),
            lambda: torch.Tensor.add_(),
            lambda: t.add_(1, beta=2),
        ):
            with pytest.raises(TypeError) as now:
                wrong()
            assert "add" in str(now.value)
        Named.seen.clear()
        torch.zeros(2).as_subclass(Named).add_(1)
        assert Named.seen.count("add_") == 1
        with Seeing() as mode:
            t.add_(1)
            t[1:] = 0
        assert mode.seen == [plain, setitem], "a mode sees the program, not us"
        assert torch.Tensor.add_.__name__ == "add_" and callable(t.add_)
    finally:
        gradmend.uninstall()
    assert torch.Tensor.add_ is plain


@needs_it
def test_the_same_chain_is_the_same_tuple() -> None:
    def here() -> sites.Raw:
        return sites.raw_here()

    *_, first, again = [
        here() for _ in range(100)
    ]  # CPython specializes the call at first, at another offset
    assert first is again
    words: dict[str, Any] = {"here": here}
    lines = "\n".join("    here()," for _ in range(3000))
    exec(compile(f"def many():\n    return [\n{lines}\n    ]\n", "<many>", "exec"), words)
    once, twice = [words["many"]() for _ in range(2)]  # more than are remembered
    assert once == twice and len(set(once)) == 3000


@needs_it
def test_a_tapped_function_looks_like_torchs() -> None:
    plain = torch.relu_
    gradmend.install()
    try:
        for home, name in (
            (torch, "relu_"),
            (torch, "add"),
            (torch.nn.functional, "linear"),
            (torch, "batch_norm"),
        ):
            tap = getattr(home, name)
            original = tap.__gradmend_original__
            assert type(tap) is compiled.Function and isinstance(tap, BuiltinFunctionType)
            for word in ("__name__", "__qualname__", "__doc__", "__self__"):
                assert getattr(tap, word) == getattr(original, word), (name, word)
            assert tap.__module__ == (original.__module__ or "torch"), "a graph is written down by it"
            assert tap == original and original == tap and len({tap, original}) == 1
            assert copy.deepcopy(tap) is copy.copy(tap) is tap
            assert pickle.loads(pickle.dumps(tap)) in (tap, original)

        class Held:
            function = torch.relu  # a builtin in a class is no method

        t = torch.tensor([-1.0, 1.0])
        assert Held().function(t).tolist() == [0.0, 1.0]
        assert torch.relu_(t) is t and t.tolist() == [0.0, 1.0]
        assert torch.add(t, other=t, alpha=2).tolist() == [0.0, 3.0]
        for wrong in (lambda: torch.relu_(), lambda: torch.relu_("x"), lambda: torch.add(t, 1, out="x")):
            with pytest.raises(TypeError):
                wrong()
        pickled = pickle.dumps(torch.relu_)
    finally:
        gradmend.uninstall()
    assert torch.relu_ is plain and pickle.loads(pickled) is plain


def _written(work: Callable[[], Any]) -> list[tuple[str, int]]:
    gradmend.install()
    try:
        ring = recorder.current()
        assert ring is not None
        at = len(ring.ring)
        work()
        return [(op, len(recorder.unpacked(places))) for op, _, places, *_ in list(ring.ring)[at:]]
    finally:
        gradmend.uninstall()


def test_what_functions_write_is_recorded() -> None:
    t, mean, var = torch.ones(2, 2), torch.zeros(2), torch.ones(2)

    def work() -> None:
        torch.relu_(t)
        torch.relu_(input=t)
        # It steps no counter: no error can come of it.
        torch.nn.functional.batch_norm(t, mean, var, training=True)
        torch.add(t, 1)
        torch.add(t, 1, out=None)
        torch.add(t, 1, out=torch.empty(2, 2))
        torch._foreach_add_([t, mean], 1)
        torch.ops.aten.add_.Scalar(t, 1)
        torch.ops.aten.mul.Tensor(t, t)
        torch.ops.aten.mul.out(t, t, out=t)
        Named.seen.clear()
        torch.relu(t.as_subclass(Named))
        torch.relu_(t.as_subclass(Named))

    expected = [("relu_", 1), ("relu_", 1), ("add(out=)", 1), ("_foreach_add_", 2)]
    expected += [("add_", 1), ("mul", 1), ("relu_", 1)]
    assert _written(work) == expected
    assert Named.seen.count("relu") == Named.seen.count("relu_") == 1


@needs_it
def test_records_are_those_of_python() -> None:
    gradmend.install()
    try:
        ring = recorder.current()
        assert ring is not None
        dense, gappy = torch.zeros(4), torch.zeros(4, 4)[:, ::2]
        at = len(ring.ring)
        dense.add_(1)
        gappy.add_(1)
        torch.relu_(dense)
        torch.empty(0).resize_(2).copy_(torch.ones(2))
        ops, raws, packed, *_ = zip(*list(ring.ring)[at:], strict=True)
        places = list(map(recorder.unpacked, packed))
        assert ops == ("add_", "add_", "relu_", "resize_", "copy_")
        assert [place[0][2] for place in places][:3] == [1, 1, 2]
        assert places[0] == [(dense.data_ptr(), 16, 1, None)] and isinstance(packed[0], bytes)
        assert places[1][0][3] is not None, "the grid of a tensor with gaps"
        users = [sites.resolve(raw).user for raw in raws]
        assert all(u is not None and u.file == __file__ for u in users)
        assert tuple(w.op for w in ring.writes()[-5:]) == ops
        ticks = [w.tick for w in ring.writes()]
        assert ticks == sorted(ticks)
    finally:
        gradmend.uninstall()


@needs_it
def test_another_listener_hears_too() -> None:
    heard: list[str] = []

    def ear(op: str, targets: Any, how: str) -> None:
        heard.append(op)

    gradmend.install()
    try:
        ring = recorder.current()
        assert ring is not None
        at = len(ring.ring)
        hub.listen(ear)
        torch.zeros(2).add_(1)
        hub.unlisten(ear)
        torch.zeros(2).mul_(1)
        assert heard == ["add_"]
        assert [op for op, *_ in list(ring.ring)[at:]] == ["add_", "mul_"]
    finally:
        gradmend.uninstall()


@needs_it
def test_calls_leave_nothing_behind() -> None:
    gradmend.install()
    try:
        ring = recorder.current()
        assert ring is not None
        t = torch.zeros(4)
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2)).sum().backward()

        def work() -> None:
            for _ in range(300):
                t.add_(1)
                optimizer.step()
                with pytest.raises(TypeError):
                    t.add_("x")
            ring.ring.clear()
            gc.collect()

        work()
        refs, grown = sys.getrefcount(t), []
        for _ in range(3):  # torch and the collector keep some blocks of their own at first
            before = sys.getallocatedblocks()
            work()
            grown.append(sys.getallocatedblocks() - before)
        assert sys.getrefcount(t) == refs
        assert min(grown) < 150
    finally:
        gradmend.uninstall()


def run(program: str, **more: str) -> str:
    env = {**os.environ, **more, "NO_COLOR": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


STORY = """
import torch, gradmend
from gradmend.capture.native import loading
assert loading.COMPILED is not PURE
gradmend.install()
w = torch.nn.Parameter(torch.ones(3))
opt = torch.optim.AdamW([w], lr=0.1, foreach=False)
loss = (w.exp() * w).sum()
loss.backward(retain_graph=True)
opt.step()
try:
    loss.backward()
except RuntimeError as error:
    print(*error.__notes__)
y = w.exp()
y.view(3, 1)[1:] += 1
try:
    y.sum().backward()
except RuntimeError as error:
    print(*error.__notes__)
"""


@pytest.mark.slow
def test_without_it_the_story_is_the_same() -> None:
    pure = run(STORY.replace("PURE", "True"), GRADMEND_PURE="1")
    assert "AdamW.step" in pure and pure.count("GM1") >= 2
    if compiled is not None:
        assert run(STORY.replace("PURE", "False"), GRADMEND_PURE="") == pure
        assert run(STORY.replace("PURE", "False"), GRADMEND_PURE="0") == pure


@pytest.mark.slow
def test_without_it_what_it_speeds_up_still_holds() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider"]
    files = [
        "test_install.py",
        "capture/hooks/test_backward_calls.py",
        "capture/hooks/test_optimizer_steps.py",
        "capture/taps/test_taps_restore.py",
        "heal/test_undo_records.py",
    ]
    files += ["oracles/test_random_programs.py"]
    there = [str(TESTS / f) for f in files]
    ran = subprocess.run(
        [*command, *there],
        capture_output=True,
        text=True,
        env={**os.environ, "GRADMEND_PURE": "1", "GRADMEND_PROGRAMS": "300", "PYTEST_ADDOPTS": ""},
        timeout=900,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
