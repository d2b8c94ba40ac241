"""The verdict: a Save is harmed when bytes that backward reads have changed, and at no other time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

import gradmend

Write = Callable[[torch.Tensor], object]


def start() -> torch.Tensor:
    return torch.arange(-3.0, 9.0, dtype=torch.float64).reshape(3, 4).requires_grad_()


def run(saves: Callable[[torch.Tensor], torch.Tensor], write: Write) -> torch.Tensor:
    x = start()
    h = x * 1
    loss = saves(h).sum()
    write(h)
    loss.backward()
    assert x.grad is not None
    return x.grad


DISJOINT: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Write]] = {
    "another row": (lambda h: h[0] ** 2, lambda h: h[1].zero_()),
    "rows against the other rows": (lambda h: h[::2] ** 2, lambda h: h[1::2].zero_()),
    "even columns against odd": (lambda h: h[:, ::2] ** 2, lambda h: h[:, 1::2].mul_(3)),
    "the transpose's rows": (lambda h: h.t()[0] ** 2, lambda h: h[:, 1].zero_()),
    "the diagonal": (lambda h: h.diagonal() ** 2, lambda h: h[1, 0].zero_()),
    "as_strided": (lambda h: h.as_strided((3,), (4,), 1) ** 2, lambda h: h.as_strided((3,), (4,), 2).zero_()),
    "a mask elsewhere": (lambda h: h[0] ** 2, lambda h: h.masked_fill_(torch.arange(3)[:, None] > 0, 9.0)),
}
UNCHANGED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Write]] = {
    "add_(0)": (lambda h: h**2, lambda h: h.add_(0)),
    "mul_(1)": (lambda h: h**2, lambda h: h.mul_(1)),
    "there and back": (lambda h: h**2, lambda h: (h.mul_(2), h.div_(2))),
    "abs_ of squares": (lambda h: h.square_().sin(), lambda h: h.abs_()),
    "copied onto itself": (lambda h: h**2, lambda h: h.copy_(h.detach().clone())),
}


@pytest.mark.parametrize("name", [*DISJOINT, *UNCHANGED])
def test_what_pytorch_refuses_although_it_is_right(name: str) -> None:
    saves, write = {**DISJOINT, **UNCHANGED}[name]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        run(saves, write)
    right = run(saves, lambda h: None)
    for context in (gradmend.watch(), gradmend.heal()):
        with context as session:
            assert torch.equal(run(saves, write), right)
        assert session.outcome == "clean"
        assert {c.kind for c in session.conflicts} == {"refused-but-right"}


def test_relu_on_the_output_of_relu() -> None:
    x = start()
    with gradmend.watch() as session:
        y = (x * 1).relu()
        loss = (y * 1).sum()
        y.relu_()
        loss.backward()
    assert session.outcome == "clean"
    assert torch.equal(x.grad, (x.detach() > 0).double())  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), -0.0])
def test_bits_count(value: float) -> None:
    """NaN equals itself, and -0.0 is not 0.0."""
    x = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    h = x * 1
    with torch.no_grad():
        h[0] = value
    for new, harmful in ((value, False), (0.0, True)):
        with gradmend.watch() as session:
            loss = (h.detach().requires_grad_() ** 2).sum()
            kept = loss.grad_fn.next_functions[0][0]._saved_self  # type: ignore[union-attr]
            kept.detach()[0] = new
            if harmful:
                with pytest.raises(gradmend.ConflictError):
                    loss.backward()
            else:
                loss.backward()
        assert (session.outcome == "conflict") == harmful


def test_a_save_in_a_dtype_of_its_own() -> None:
    """The same bytes as complex, as pairs of reals, as integers."""
    for write in (
        lambda z: torch.view_as_real(z)[0, 1].zero_(),
        lambda z: z.imag.mul_(2),
        lambda z: z.conj().mul_(2),
        lambda z: z.detach().view(torch.float64).fill_(1.0),
        lambda z: z.detach().view(torch.float64).view(torch.int64).zero_(),
    ):
        grads = []
        for touched in (False, True):
            x = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128, requires_grad=True)
            with gradmend.heal() as session:
                z = x * 1
                loss = (z * z).abs().sum()
                if touched:
                    write(z)
                loss.backward()
            assert x.grad is not None
            grads.append(x.grad)
        assert torch.equal(*grads)
        assert session.outcome == "healed"


def test_writes_are_told_oldest_first_with_their_number() -> None:
    x = start()
    with pytest.raises(gradmend.ConflictError) as stopped, gradmend.watch():
        h = x * 1
        loss = (h**2).sum()
        for _ in range(3):
            h.mul_(2)
        h[0] = 0.0
        loss.backward()
    writes = stopped.value.conflict.writes
    assert [w.op for w in writes][:1] == ["mul_"]
    assert sum(w.times for w in writes) == 4


_AT_PYTHONS_END = """
import torch, gradmend
from gradmend.capture.ledger import entries
x, b = torch.ones(3, requires_grad=True), torch.ones(3)
with gradmend.watch():
    kept = [x * b for _ in range(5)]
    b.add_(0)
vars(entries).update(dict.fromkeys(vars(entries)))
kept.clear()
"""


def test_the_last_saves_die_when_the_names_of_our_modules_are_gone():
    ran = subprocess.run([sys.executable, "-c", _AT_PYTHONS_END], capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stderr) == (0, "")
