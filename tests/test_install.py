"""install(): PyTorch's own exception, with the story added after the fact."""

import contextlib

import pytest
import torch

import gradmend
from gradmend.errors import attached


@pytest.fixture(autouse=True)
def installed():
    gradmend.install()
    yield
    gradmend.uninstall()


def _line(function, text):
    import inspect

    lines, start = inspect.getsourcelines(function)
    (at,) = [start + i for i, line in enumerate(lines) if text in line]
    return at


def _broken():
    y = torch.ones(3, requires_grad=True).exp()
    y += 1  # write
    y.sum().backward()  # backward


def test_the_exception_stays_pytorchs_and_gets_a_note():
    with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
        _broken()
    error = caught.value
    assert type(error) is RuntimeError
    (note,) = error.__notes__
    assert "y += 1" in note
    conflict = attached(error)
    assert (conflict.culprits[0].file, conflict.culprits[0].line) == (__file__, _line(_broken, "# write"))
    assert conflict.backward.line == _line(_broken, "# backward")
    assert gradmend.explain(error) is not None


def test_nothing_is_held_up_that_pytorch_lets_pass():
    """Silent: install() only explains PyTorch's own errors, and changes no gradient."""
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    y.data.add_(1)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3).exp() + 1)


def test_a_step_between_forward_and_backward():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    optimizer = torch.optim.Adam(model.parameters())

    def run():
        x = torch.ones(2, 3)
        first, second = model(x).sum(), model(x).square().sum()
        first.backward(retain_graph=True)
        optimizer.step()  # write
        second.backward()

    with pytest.raises(RuntimeError, match="inplace operation") as caught:
        run()
    conflict = attached(caught.value)
    assert conflict.culprits[0].line == _line(run, "# write")
    assert "step" in conflict.writes[0].op


def test_an_optimizer_whose_step_raises_does_not_deafen_the_recorder():
    w = torch.nn.Parameter(torch.ones(2))

    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ArithmeticError

    w.grad = torch.ones(2)
    with contextlib.suppress(ArithmeticError):
        Failing([w], lr=0.1).step()
    (w * w).sum().backward()  # the next backward makes it listen again
    with pytest.raises(RuntimeError) as caught:
        _broken()
    assert attached(caught.value).culprits[0].line == _line(_broken, "# write")


def test_an_optimizer_within_an_optimizer():
    w = torch.nn.Parameter(torch.ones(2))

    class Outer(torch.optim.SGD):
        def __init__(self, params):
            super().__init__(params, lr=0.1)
            self.inner = torch.optim.SGD(params, lr=0.1)

        @torch.no_grad()
        def step(self, closure=None):
            self.inner.step()
            self.inner.step()
            w.mul_(2)

    outer = Outer([w])
    loss = (w * w).sum()
    w.grad = torch.ones(2)
    outer.step()
    with pytest.raises(RuntimeError, match="inplace operation") as caught:
        loss.backward()
    assert attached(caught.value).culprits[0].file == __file__
    with pytest.raises(RuntimeError) as caught:
        _broken()
    assert attached(caught.value).culprits[0].line == _line(_broken, "# write")


def test_uninstall_after_a_step_that_raised():
    w = torch.nn.Parameter(torch.ones(2))
    w.grad = torch.ones(2)
    optimizer = torch.optim.SGD([w], lr=0.1)
    optimizer.param_groups[0]["lr"] = "fast"
    with contextlib.suppress(Exception):
        optimizer.step()
    gradmend.uninstall()
    gradmend.install()
    with pytest.raises(RuntimeError) as caught:
        _broken()
    assert attached(caught.value).culprits[0].line == _line(_broken, "# write")


def test_installing_twice_is_once():
    gradmend.install()
    gradmend.uninstall()
    with pytest.raises(RuntimeError) as caught:
        _broken()
    assert not hasattr(caught.value, "__notes__")


def test_uninstall_without_install_is_nothing():
    gradmend.uninstall()
    gradmend.uninstall()
    with pytest.raises(RuntimeError) as caught:
        _broken()
    assert not hasattr(caught.value, "__notes__")
    gradmend.install()
    with pytest.raises(RuntimeError) as caught:
        _broken()
    assert len(caught.value.__notes__) == 1


def test_with_watch_inside():
    with gradmend.watch(), pytest.raises(gradmend.ConflictError):
        _broken()
    with pytest.raises(RuntimeError) as caught:
        _broken()
    assert not isinstance(caught.value, gradmend.ConflictError)
    assert len(caught.value.__notes__) == 1


def test_the_ring_is_bounded():
    from gradmend.capture import recorder

    t = torch.zeros(2)
    ring = recorder.current().ring
    for _ in range(ring.maxlen + 100):
        t.add_(1)
    assert len(ring) == ring.maxlen


def test_the_recorder_keeps_nothing_alive():
    import gc
    import weakref

    t = torch.zeros(1000)
    t.add_(1)
    ref = weakref.ref(t)
    del t
    gc.collect()
    assert ref() is None


def test_second_backward():
    def run():
        loss = (torch.ones(3, requires_grad=True) ** 2).sum()  # made
        loss.backward()  # first
        loss.backward()  # second

    with pytest.raises(RuntimeError, match="second time") as caught:
        run()
    lines = [c.line for c in attached(caught.value).culprits]
    assert lines == [_line(run, f"# {mark}") for mark in ("made", "second", "first")]


def test_the_hook_for_uncaught_exceptions_goes_back():
    import sys

    gradmend.uninstall()
    before = sys.excepthook
    gradmend.install()
    gradmend.uninstall()
    assert sys.excepthook is before
    gradmend.install()


@pytest.mark.parametrize("act", ["first forward", "to", "load_state_dict", "data"])
def test_lazy_modules_work_while_installed(act):
    module = torch.nn.LazyLinear(3)
    if act == "first forward":
        assert module(torch.ones(2, 4)).shape == (2, 3)
    elif act == "to":
        assert module.to(torch.float64).weight.dtype == torch.float64
    elif act == "load_state_dict":
        module.load_state_dict(torch.nn.Linear(4, 3).state_dict())
        assert module.weight.shape == (3, 4)
    else:
        module.weight.data = module.weight.data


def test_wrappers_of_torch_func_are_not_asked_for_an_address(monkeypatch):
    """PyTorch would raise, with a C++ backtrace that takes ten times as long as the call."""
    from gradmend.capture import recorder

    asked = []
    monkeypatch.setattr(recorder, "_packed", asked.extend)
    torch.func.vmap(lambda x: x.clone().add_(1))(torch.ones(2, 3))
    assert not any(map(torch._C._functorch.is_functorch_wrapped_tensor, asked))
