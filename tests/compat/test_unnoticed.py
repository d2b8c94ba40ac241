"""What a program can observe of itself stays as it is while it is watched."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

import gradmend
from gradmend.capture.unseen import without_grad

contexts = pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])

IDS = """
import torch, gradmend
with gradmend.watch(), gradmend.heal():
    t = torch.ones(2, requires_grad=True)
    t.register_hook(lambda grad: grad)
assert list(t._backward_hooks) == [0], t._backward_hooks
"""


def test_the_first_hook_of_a_program_has_its_first_id() -> None:
    done = subprocess.run([sys.executable, "-c", IDS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@contexts
def test_tensors_that_the_programs_hooks_keep_can_be_copied_and_saved(context: Callable[[], Any]) -> None:
    kept: list[torch.Tensor] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        kept.append(t.detach())
        return kept[-1]

    x = torch.ones(3, requires_grad=True)
    with context():
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = x.exp().sin()
        assert kept and all(not vars(t) for t in kept)
        copy.deepcopy(kept)
        torch.save(kept, io.BytesIO())
        y.sum().backward()
    assert torch.allclose(x.grad, torch.tensor(1.0).exp().cos() * torch.tensor(1.0).exp())


@contexts
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_graph_that_make_fx_writes_down(context: Callable[[], Any], mode: str) -> None:
    w, x = torch.randn(3, 4, requires_grad=True), torch.randn(2, 4)

    def ops() -> list[str]:
        graph = make_fx(lambda w, x: torch.nn.functional.linear(x, w).tanh().exp().sum(), tracing_mode=mode)(
            w, x
        ).graph
        return [node.target.__name__ for node in graph.nodes if node.op == "call_function"]

    plain = ops()
    with context():
        assert ops() == plain


@contexts
def test_names_that_a_program_patched_inside_and_put_back_after_it(context: Callable[[], Any]) -> None:
    plain = torch.linalg.pinv, torch.Tensor.add_
    with context():
        old = torch.linalg.pinv, torch.Tensor.add_
        torch.linalg.pinv, torch.Tensor.add_ = (
            lambda *a, **k: old[0](*a, **k),
            lambda *a, **k: old[1](*a, **k),
        )
    torch.linalg.pinv, torch.Tensor.add_ = old
    assert old == plain, "as good as torch's own"
    with context():
        y = torch.ones(3, requires_grad=True).exp()
        y.add_(1)
    assert torch.linalg.pinv is plain[0] and torch.Tensor.add_ is plain[1]
    assert "add_" not in vars(torch.Tensor)


def test_grad_mode_is_put_back_whatever_ends_our_work() -> None:
    def interrupted() -> None:
        assert not torch.is_grad_enabled()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        without_grad(interrupted)
    assert torch.is_grad_enabled()
    with torch.no_grad():
        assert without_grad(torch.is_grad_enabled) is False
        assert not torch.is_grad_enabled()


class Asked(torch.Tensor):
    seen: list[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def _questions() -> list[str]:
    Asked.seen = []
    b = torch.zeros(3).as_subclass(Asked)
    b.add_(1)
    b[0] = 3
    b.data = torch.ones(3)
    torch.add(b, 1, out=b)
    return Asked.seen


@contexts
def test_a_subclass_sees_no_question_of_ours(context: Callable[[], Any]) -> None:
    plain = _questions()
    with context():
        assert _questions() == plain
    gradmend.install()
    try:
        assert _questions() == plain
    finally:
        gradmend.uninstall()


@contexts
def test_it_says_where_the_program_disables_the_hooks(context: Callable[[], Any]) -> None:
    x = torch.ones(3, requires_grad=True)
    with context(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            y = x.exp()
        torch.func.grad(lambda t: t.sin().sum())(torch.ones(2))
        y.sum().backward()
    (warning,) = [w for w in told if issubclass(w.category, gradmend.GradmendWarning)]
    assert warning.filename == __file__ and "hooks are disabled here" in str(warning.message)


class Wrapped(torch.Tensor):
    """A wrapper that does not say what it wraps."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        bare = tree_map(lambda v: v.inner if isinstance(v, Wrapped) else v, (args, kwargs or {}))
        out = tree_map(lambda v: cls(v) if type(v) is torch.Tensor else v, func(*bare[0], **bare[1]))
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


@contexts
@pytest.mark.parametrize("inside", ["data", "inner"])
def test_a_write_inside_a_wrapper_stops(context: Callable[[], Any], inside: str) -> None:
    with context():
        w = Wrapped(torch.tensor([0.25, 0.5])).requires_grad_()
        y = w * 2
        s = y.sin().sum()
        (y.data if inside == "data" else y.inner).mul_(0)
        with pytest.raises(gradmend.GradmendError):
            s.backward()


class Listing(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


@contexts
@pytest.mark.parametrize(
    "look",
    [
        lambda y: y.data,
        lambda y: y.detach().numpy(),
        lambda y: y.untyped_storage(),
        lambda y: y.detach().data_ptr(),
    ],
)
def test_a_mode_sees_no_question_of_ours(
    context: Callable[[], Any], look: Callable[[torch.Tensor], Any]
) -> None:
    def asked() -> list[str]:
        y = torch.ones(4, requires_grad=True) * 2
        with Listing() as mode:
            look(y)
        return mode.seen

    plain = asked()
    with context():
        assert asked() == plain
