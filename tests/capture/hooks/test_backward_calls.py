from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.autograd.graph as graph

from gradmend.capture.graph import calls as graph_calls
from gradmend.capture.graph.calls import BackwardCall
from gradmend.capture.hooks import backward_calls
from gradmend.capture.sites import raw_from, resolve


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    backward_calls.forget()
    yield
    backward_calls.disarm()
    backward_calls.forget()


def here() -> int:
    return sys._getframe(1).f_lineno


def test_all_three_ways_to_start_a_backward_are_recorded() -> None:
    backward_calls.arm()
    x = torch.ones(3, requires_grad=True)
    x.exp().sum().backward()
    torch.autograd.backward(x.exp().sum(), retain_graph=True)
    torch.autograd.grad(x.exp().sum(), x, create_graph=True)
    line = here()
    calls = list(backward_calls.history)
    assert [c.frame.line for c in calls if c.frame] == [line - 3, line - 2, line - 1]
    assert all(c.frame and c.frame.file == __file__ for c in calls)
    assert [c.retain for c in calls] == [False, True, True]
    assert [c.outcome for c in calls] == ["done"] * 3
    assert calls[0].roots[0] < calls[1].roots[0] < calls[2].roots[0]


def test_disarm_restores_both_names_and_arming_twice_is_an_error() -> None:
    names = (graph._engine_run_backward, torch.autograd._engine_run_backward)
    backward_calls.arm()
    assert graph._engine_run_backward is not names[0]
    with pytest.raises(RuntimeError, match="armed already"):
        backward_calls.arm()
    backward_calls.disarm()
    backward_calls.disarm()
    assert (graph._engine_run_backward, torch.autograd._engine_run_backward) == names
    torch.ones(1, requires_grad=True).sum().backward()
    assert not backward_calls.history


def test_a_wrapper_put_on_top_of_ours_survives_disarm() -> None:
    plain = graph._engine_run_backward
    backward_calls.arm()
    ours = graph._engine_run_backward
    theirs = lambda *a, **k: ours(*a, **k)  # noqa: E731
    graph._engine_run_backward = theirs
    try:
        backward_calls.disarm()
        assert graph._engine_run_backward is theirs
        torch.ones(1, requires_grad=True).sum().backward()
        assert not backward_calls.history
    finally:
        graph._engine_run_backward = plain


def test_the_callbacks_see_the_call_the_roots_and_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def watch(call: BackwardCall, roots: Any, grads: Any) -> Any:
        seen.append(("before", call.outcome, (roots[0] * grads[0]).item()))
        return lambda call, roots: seen.append(("after", call.outcome))

    monkeypatch.setattr(backward_calls, "watchers", [watch])
    backward_calls.arm(lambda call, exc, roots: seen.append((call.outcome, str(exc)[:27], len(roots))))
    loss = torch.ones(3, requires_grad=True).exp().sum() * 0
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert seen == [
        ("before", "running", 0.0),
        ("after", "done"),
        ("before", "running", 0.0),
        ("after", "failed"),
        ("failed", "Trying to backward through ", 1),
    ]
    assert not backward_calls.running


def test_an_error_of_the_callback_does_not_hide_the_one_it_should_explain() -> None:
    def failed(call: BackwardCall, exc: BaseException, roots: Any) -> None:
        raise KeyError("a bug of ours")

    backward_calls.arm(failed)
    loss = torch.ones(3, requires_grad=True).exp().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time") as caught:
        loss.backward()
    assert caught.value.__notes__ == ["gradmend could not explain this error: KeyError: 'a bug of ours'"]
    assert caught.value.__context__ is None


def test_results_are_bit_identical() -> None:
    def grads() -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        net(torch.randn(5, 4)).square().mean().backward()
        return [p.grad for p in net.parameters() if p.grad is not None]

    plain = grads()
    backward_calls.arm()
    assert all(torch.equal(a, b) for a, b in zip(plain, grads(), strict=True))


class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.token = Token()
        TOKENS.append(weakref.ref(ctx.token))
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


class Token:
    pass


TOKENS: list[weakref.ref[Token]] = []


def test_no_graph_is_kept_alive_and_the_history_is_bounded() -> None:
    TOKENS.clear()
    backward_calls.arm()
    x = torch.ones(3, requires_grad=True)
    for _ in range(200):
        Kept.apply(x).sum().backward()
    gc.collect()
    assert len(TOKENS) == 200
    assert [t() for t in TOKENS] == [None] * 200
    assert len(backward_calls.history) < 200


def test_a_failed_call_keeps_no_graph_either() -> None:
    TOKENS.clear()
    backward_calls.arm(lambda call, exc, roots: None)

    def fail() -> None:
        loss = Kept.apply(torch.ones(3, requires_grad=True)).exp().sum()
        loss.backward()
        with pytest.raises(RuntimeError):
            loss.backward()

    fail()
    gc.collect()
    assert TOKENS[0]() is None


def visiting(saves: dict[int, int]) -> Any:
    """Hooks like the ledger's: the pack side takes the line, the unpack side tells the node."""

    def pack(t: torch.Tensor) -> tuple[Any, torch.Tensor]:
        return raw_from(sys._getframe(1)), t

    def unpack(handle: tuple[Any, torch.Tensor]) -> torch.Tensor:
        node = torch._C._current_autograd_node()
        graph_calls.visit(node._sequence_nr(), handle[0])
        saves[node._sequence_nr()] = saves.get(node._sequence_nr(), 0) + 1
        return handle[1]

    return graph.saved_tensors_hooks(pack, unpack)


def test_the_nodes_that_ran_are_known_with_the_line_that_made_them() -> None:
    backward_calls.arm()
    x = torch.ones(3, requires_grad=True)
    unpacked: dict[int, int] = {}
    with visiting(unpacked):
        h = x.exp()
        line = here() - 1
    node = h.grad_fn
    assert node is not None
    number = node._sequence_nr()
    h.sum().backward(retain_graph=True)
    assert backward_calls.history[-1].visited == {}  # a graph that is retained is not freed
    h.sum().backward()
    visited = backward_calls.history[-1].visited
    assert set(visited) == {number} == set(unpacked)
    frame = resolve(visited[number]).user
    assert frame is not None and frame.line == line


def test_only_recent_calls_keep_their_nodes() -> None:
    backward_calls.arm()
    x = torch.ones(3, requires_grad=True)
    with visiting({}):
        for _ in range(40):
            x.exp().sum().backward()
    with_nodes = [bool(c.visited) for c in backward_calls.history]
    assert len(with_nodes) == 40
    assert with_nodes == [False] * 24 + [True] * 16


def test_a_backward_inside_a_hook_of_another_is_told_apart() -> None:
    inside: list[BackwardCall | None] = []
    backward_calls.arm()
    x = torch.ones(3, requires_grad=True)
    h = x.exp()

    def hook(g: torch.Tensor) -> None:
        with torch.enable_grad():
            (x * 3).sum().backward()
        inside.append(graph_calls.current())

    h.register_hook(hook)
    h.sum().backward()
    outer, inner = backward_calls.history
    assert inside == [outer]
    assert inner.tick > outer.tick and not backward_calls.running


def test_threads_have_their_own_current_call() -> None:
    both, wrong = threading.Barrier(2, timeout=30), []
    backward_calls.arm()

    def work() -> None:
        x = torch.ones(3, requires_grad=True)
        h = x.exp()

        def hook(g: torch.Tensor) -> None:
            both.wait()  # both backwards are under way now
            call = graph_calls.current()
            if call is None or call.thread != threading.get_ident():
                wrong.append(call)
            both.wait()

        h.register_hook(hook)
        h.sum().backward()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(backward_calls.history) == 2


def test_a_watcher_that_fails_before_it_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def before(call: BackwardCall, roots: Any, grads: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backward_calls, "watchers", [before])
    backward_calls.arm()
    loss = torch.ones(3, requires_grad=True).sum()
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    assert [c.outcome for c in backward_calls.history] == ["failed"] and not backward_calls.running


def test_a_failure_while_a_failure_is_told_is_the_one_that_counts() -> None:
    def failed(call: BackwardCall, exc: BaseException, roots: Any) -> None:
        raise KeyboardInterrupt

    backward_calls.arm(failed)
    loss = torch.ones(3, requires_grad=True).exp().sum()
    loss.backward()
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    assert not backward_calls.running


def test_the_engine_may_be_called_by_other_names() -> None:
    """torch gives its arguments by position; whoever calls the entry himself need not."""
    backward_calls.arm()
    engine: Any = graph._engine_run_backward
    more = {"allow_unreachable": True, "accumulate_grad": True}
    grads = (torch.ones(()), torch.ones(()))
    for retain in (True, False):
        for named in (True, False):
            x = torch.ones(3, requires_grad=True)
            roots = (x.exp().sum(), graph.get_gradient_edge(x.square().sum()))
            if named:
                engine(roots, grads, keep_graph=retain, create_graph=False, inputs=(), **more)
            else:
                engine(roots, grads, retain, False, (), **more)
            call = backward_calls.history[-1]
            assert x.grad is not None and call.retain == retain
            assert call.roots == (roots[0].grad_fn._sequence_nr(), roots[1].node._sequence_nr())
    x = torch.ones(1, requires_grad=True)
    torch.autograd.backward(x)  # a leaf: no node at all
    assert backward_calls.history[-1].roots == ()
    with pytest.raises(TypeError):
        engine()


def test_calls_leave_nothing_behind() -> None:
    backward_calls.arm()
    kept: list[Any] = []

    def work() -> None:
        for _ in range(200):
            x = torch.ones(3, requires_grad=True)
            loss = x.exp().sum()
            loss.backward()
            with pytest.raises(RuntimeError):
                loss.backward()
            kept[:] = [weakref.ref(x), weakref.ref(loss)]
        backward_calls.forget()
        gc.collect()

    work()
    grown = []
    for _ in range(3):
        before = sys.getallocatedblocks()
        work()
        grown.append(sys.getallocatedblocks() - before)
    assert min(grown) < 100 and [ref() for ref in kept] == [None, None]
