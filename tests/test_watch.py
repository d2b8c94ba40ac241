"""watch() and heal() as context managers and decorators: nesting, re-entering, exceptions, threads, generators."""

import asyncio
import copy
import gc
import pickle
import sys
import threading

import pytest
import torch

import gradmend
from gradmend.capture.hooks import backward_calls, optimizer_steps
from gradmend.capture.ledger import scopes
from gradmend.capture.taps import switch
from gradmend.story.failures import diagnosing


def conflict():
    y = torch.ones(3, requires_grad=True).exp()
    y += 1
    y.sum().backward()


def healed():
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    z = y * y
    y.zero_()
    z.sum().backward()
    return x.grad


RIGHT = 2 * torch.ones(3).mul(2).exp()


def test_the_error_is_a_runtime_error_with_the_whole_story():
    with gradmend.watch(), pytest.raises(RuntimeError) as caught:
        conflict()
    error = caught.value
    assert isinstance(error, gradmend.ConflictError)
    for text in ("y += 1", "y = torch.ones(3, requires_grad=True).exp()", "y.sum().backward()"):
        assert text in str(error)
    assert error.conflict.kind == "error"


def test_session():
    with gradmend.watch() as session:
        with pytest.raises(gradmend.ConflictError) as caught:
            conflict()
        assert list(session) == [caught.value.conflict]
    assert session.outcome == "conflict"
    with gradmend.watch() as session:
        pass
    assert session.outcome == "clean"


def test_decorator_and_reuse():
    @gradmend.watch()
    def watched(broken):
        """Kept."""
        if broken:
            conflict()
        return 5

    assert watched(False) == 5
    with pytest.raises(gradmend.ConflictError):
        watched(True)
    assert watched(False) == 5
    assert watched.__name__ == "watched" and watched.__doc__ == "Kept."

    @gradmend.heal()
    def mended():
        return healed()

    torch.testing.assert_close(mended(), RIGHT)


def test_one_object_entered_twice():
    context = gradmend.watch()
    with context as outer, context as inner:
        assert outer is not inner
        with pytest.raises(gradmend.ConflictError):
            conflict()
    assert outer.outcome == "clean" and inner.outcome == "conflict"
    with context as again, pytest.raises(gradmend.ConflictError):
        conflict()
    assert again.outcome == "conflict"


def test_a_recursive_decorated_function():
    @gradmend.heal()
    def go(n):
        return healed() if n == 0 else go(n - 1)

    torch.testing.assert_close(go(4), RIGHT)


def test_the_innermost_policy_holds():
    with gradmend.watch(), gradmend.heal():
        torch.testing.assert_close(healed(), RIGHT)
    with gradmend.heal(), gradmend.watch(), pytest.raises(gradmend.ConflictError):
        conflict()
    with gradmend.heal():
        with gradmend.watch():
            pass
        torch.testing.assert_close(healed(), RIGHT)


def test_the_policy_of_a_save_is_that_of_its_context():
    with gradmend.watch():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        z = (y * y).sum()
        with gradmend.heal():
            y.zero_()
            with pytest.raises(gradmend.ConflictError):
                z.backward()


def test_after_the_context_plain_pytorch_again():
    with gradmend.watch():
        pass
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        conflict()
    assert not isinstance(caught.value, gradmend.ConflictError)


def test_backward_after_the_context():
    with gradmend.heal():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        z = (y * y).sum()
        y.zero_()
    z.backward()
    torch.testing.assert_close(x.grad, RIGHT)
    with gradmend.watch():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        z = (y * y).sum()
        y.zero_()
    with pytest.raises(gradmend.ConflictError):
        z.backward()


def test_an_exception_in_the_middle_leaves_nothing_behind():
    with pytest.raises(ZeroDivisionError), gradmend.watch():
        torch.ones(3, requires_grad=True).exp()
        raise ZeroDivisionError
    assert not switch.armed() and scopes.current() is None
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None


@pytest.mark.parametrize("bug", [KeyError, KeyboardInterrupt])
def test_a_story_that_fails_leaves_nothing_behind(bug, monkeypatch):
    """What goes wrong in telling hides neither PyTorch's own error nor the way out."""

    def failing(error):
        raise bug("while it looked")

    monkeypatch.setattr(diagnosing, "diagnose", failing)
    plain = torch.Tensor.add_
    with pytest.raises(bug if bug is KeyboardInterrupt else RuntimeError) as caught, gradmend.watch():
        torch.ones(3, requires_grad=True).add_(1)
    if bug is KeyError:
        assert "leaf Variable" in str(caught.value)
        assert caught.value.__notes__ == [
            "gradmend could not explain this error: KeyError: 'while it looked'"
        ]
    assert torch.Tensor.add_ is plain and not switch.armed()


def test_contexts_left_in_another_order():
    first, second = gradmend.watch(), gradmend.heal()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    torch.testing.assert_close(healed(), RIGHT)
    second.__exit__(None, None, None)
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    with pytest.raises(RuntimeError, match="inplace"):
        conflict()


def test_a_generator_suspended_inside():
    def steps():
        with gradmend.heal():
            yield healed()
            yield healed()

    running = steps()
    torch.testing.assert_close(next(running), RIGHT)
    torch.testing.assert_close(next(running), RIGHT)
    running.close()
    with pytest.raises(RuntimeError, match="inplace"):
        conflict()


def test_a_generator_that_is_never_finished():
    def steps():
        with gradmend.watch():
            yield 1

    running = steps()
    next(running)
    del running
    gc.collect()
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None


def test_async_code():
    async def task(delay):
        with gradmend.heal():
            await asyncio.sleep(delay)
            got = healed()
            await asyncio.sleep(0)
            return got

    async def both():
        return await asyncio.gather(task(0.02), task(0.0), task(0.01))

    for got in asyncio.run(both()):
        torch.testing.assert_close(got, RIGHT)
    with pytest.raises(RuntimeError, match="inplace"):
        conflict()


def _in_thread(function):
    out = []

    def run():
        try:
            out.append(function())
        except BaseException as error:
            out.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return out[0]


def test_another_thread_keeps_pytorchs_own_check():
    with gradmend.watch():
        error = _in_thread(conflict)
    assert isinstance(error, RuntimeError)


def test_each_thread_its_own_context():
    def work():
        with gradmend.heal():
            return healed()

    results = []
    threads = [threading.Thread(target=lambda: results.append(work())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for got in results:
        torch.testing.assert_close(got, RIGHT)


def test_threads_enter_and_leave_side_by_side():
    """Each has its turn in the middle of another's entering or leaving: nothing is lost, nothing stays."""
    plain = torch.Tensor.add_
    contexts = [gradmend.heal, gradmend.watch] * 4
    wrong = []

    def work(context):
        try:
            for _ in range(200):
                with context():
                    pass
        except BaseException as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(context,)) for context in contexts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert torch.Tensor.add_ is plain and not switch.armed() and not backward_calls.armed()
    assert not backward_calls.watchers and not optimizer_steps._pre_hooks


def test_a_write_in_another_thread_is_named():
    y = torch.ones(3)

    def write():
        y.add_(1)

    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        loss = (torch.ones((), requires_grad=True) * y).sum()
        _in_thread(write)
        loss.backward()
    assert caught.value.conflict.writes[0].site.user.function.endswith("write")


def test_backward_in_another_thread():
    with gradmend.heal():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        z = (y * y).sum()
        y.zero_()
        assert _in_thread(z.backward) is None
    torch.testing.assert_close(x.grad, RIGHT)


def test_retain_graph_and_a_second_time():
    with gradmend.heal():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        z = (y * y).sum()
        y.zero_()
        z.backward(retain_graph=True)
        z.backward()
    torch.testing.assert_close(x.grad, 2 * RIGHT)


def test_the_same_conflict_many_times_is_told_once():
    with gradmend.heal() as session:
        for _ in range(5):
            healed()
    kinds = [c for c in session.conflicts if c.kind == "error"]
    assert kinds and all(c.times % 5 == 0 for c in kinds)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_the_error_crosses_processes(again):
    """A pool pickles what its worker raises: one that can't be read back hangs the parent."""
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as raised:
        conflict()
    other = again(raised.value)
    assert isinstance(other, gradmend.ConflictError)
    assert str(other) == str(raised.value)
    assert other.conflict == raised.value.conflict


def test_a_story_shows_no_frame_of_ours():
    with pytest.raises(gradmend.ConflictError) as caught, gradmend.watch():
        y = torch.ones(3, requires_grad=True).exp()
        y += 1
        y.sum().backward()
    files = [entry.path for entry in caught.traceback]
    assert not [f for f in files if "gradmend" in f.parts and "tests" not in f.parts], files


def test_pytorchs_sentence_stands_whole():
    w = torch.ones(3, requires_grad=True)
    y = w * torch.ones(3, requires_grad=True)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError) as plain:
        y.sum().backward()
    with pytest.raises(gradmend.ConflictError) as ours, gradmend.watch():
        for _ in range(3):  # caught twice: the counters are those of the time
            y = w * torch.ones(3, requires_grad=True)
            before = w._version
            with torch.no_grad():
                w.add_(1)
            if before < 3:
                with pytest.raises(gradmend.ConflictError):
                    y.sum().backward()
            else:
                y.sum().backward()
    sentence = str(plain.value).partition(" Hint")[0]
    assert sentence.endswith("is at version 1; expected version 0 instead.")
    assert str(ours.value).splitlines()[0] == sentence.replace("version 1", "version 4").replace(
        "version 0", "version 3"
    )


def test_a_kind_that_is_caught_again_is_told_in_the_same_words(monkeypatch):
    """A loop that catches a thousand: the story takes milliseconds to find."""
    from gradmend.api import watching

    found = []
    plain = watching.words_of
    monkeypatch.setattr(watching, "words_of", lambda c, **how: found.append(c) or plain(c, **how))
    told = set()
    with gradmend.watch() as session:
        for _ in range(5):
            y = torch.ones(3, requires_grad=True).exp()
            y += 1
            try:
                y.sum().backward()
            except gradmend.ConflictError as error:
                told.add(str(error))
    assert len(told) == 1 and len(found) == 1 and session.conflicts[0].times == 5
