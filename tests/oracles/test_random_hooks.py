"""Random graphs with hooks and custom backwards that write gradients in place, and with checkpointed regions.

The truth is a twin that copies each gradient before it is written, calls each region without a checkpoint, and copies what a
region reads. Where plain PyTorch equals the twin, watch() and heal() report nothing; elsewhere watch() stops, and heal() is
right or stops. `make fuzz` runs 10,000 of each kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import gradmend

MANY = int(os.environ.get("GRADMEND_PROGRAMS", "300")) // 2
T = torch.Tensor
each = settings(
    max_examples=max(MANY, 1),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)

WRITES: dict[str, Callable[[T], object]] = {
    "g.mul_(2)": lambda g: g.mul_(2),
    "g.clamp_(-0.5, 0.5)": lambda g: g.clamp_(-0.5, 0.5),
    "g.neg_()": lambda g: g.neg_(),
    "g.zero_()": lambda g: g.zero_(),
    "g[0] = 0": lambda g: g.__setitem__(0, 0.0),
    "g.nan_to_num_()": lambda g: g.nan_to_num_(),
    "g.add_(0)": lambda g: g.add_(0),
    "g[g.isnan()] = 0": lambda g: g.__setitem__(g.isnan(), 0.0),
    "torch.neg(g, out=g)": lambda g: torch.neg(g, out=g),
}
ONE: dict[str, Callable[[T], T]] = {
    "{a} * 2": lambda a: a * 2,
    "{a}.sin()": lambda a: a.sin(),
    "{a} * {a}": lambda a: a * a,
    "{a}.view(2, 3).view(6)": lambda a: a.view(2, 3).view(6),
    "{a}.clone()": lambda a: a.clone(),
    "{a}.view(2, 3).t().reshape(6)": lambda a: a.view(2, 3).t().reshape(6),
    "{a}.sum().expand(6)": lambda a: a.sum().expand(6),
    "{a}[:3].repeat(2)": lambda a: a[:3].repeat(2),
    "torch.fft.rfft({a}).real.repeat(2)[:6]": lambda a: torch.fft.rfft(a).real.repeat(2)[:6],
    "torch.stack({a}.unbind()[::-1])": lambda a: torch.stack(a.unbind()[::-1]),
}
TWO: dict[str, Callable[[T, T], T]] = {
    "{a} + {b}": lambda a, b: a + b,
    "{a} - {b}": lambda a, b: a - b,
    "{a} * {b}": lambda a, b: a * b,
    "torch.cat([{a}[:3], {b}[3:]])": lambda a, b: torch.cat([a[:3], b[3:]]),
    "torch.cat([{a}, {b}])[3:9]": lambda a, b: torch.cat([a, b])[3:9],
    "torch.stack([{a}, {b}]).sum(0)": lambda a, b: torch.stack([a, b]).sum(0),
    "torch.stack([{a}, {b}])[0]": lambda a, b: torch.stack([a, b])[0],
    "{a}.sum() + {b}": lambda a, b: a.sum() + b,
    "torch.hstack([{a}[:2], {b}[:4]])": lambda a, b: torch.hstack([a[:2], b[:4]]),
}


@dataclass(frozen=True)
class Step:
    kind: str  # one, two, hook, function, region, buffer
    words: str
    a: int
    b: int = 0

    def __repr__(self) -> str:
        return f"{self.kind}: {self.words.format(a=f'v{self.a}', b=f'v{self.b}')} (v{self.a}, v{self.b})"


def _steps() -> st.SearchStrategy[list[Step]]:
    at = st.integers(0, 7)
    step = st.one_of(
        st.builds(Step, st.just("one"), st.sampled_from(list(ONE)), at),
        st.builds(Step, st.just("two"), st.sampled_from(list(TWO)), at, at),
        st.builds(Step, st.just("hook"), st.sampled_from(list(WRITES)), at),
        st.builds(Step, st.just("function"), st.sampled_from(list(WRITES)), at),
        st.builds(Step, st.sampled_from(["region", "reentrant"]), st.sampled_from(list(ONE)), at),
        st.builds(Step, st.just("buffer"), st.sampled_from(["mul_", "zero_", "add_(0)", "data"]), at),
    )
    return st.lists(step, min_size=2, max_size=14)


class Writing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: T, write: Callable[[T], object], twin: bool) -> T:
        ctx.write, ctx.twin = write, twin
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        grad = grad.clone() if ctx.twin else grad
        ctx.write(grad)
        return grad, None, None


def _hook(write: Callable[[T], object], twin: bool) -> Callable[[T], T | None]:
    def hook(grad: T) -> T | None:
        grad = grad.clone() if twin else grad
        write(grad)
        return grad if twin else None

    return hook


def _write_buffer(buffer: T, words: str) -> None:
    with torch.no_grad():
        if words == "mul_":
            buffer.mul_(2)
        elif words == "zero_":
            buffer[1:3].zero_()
        elif words == "data":
            buffer.data.add_(1)
        else:
            buffer.add_(0)


def gradients(steps: list[Step], twin: bool) -> list[T]:
    leaves = [torch.linspace(-1 - i, 1 + i, 6, dtype=torch.float64).requires_grad_() for i in range(2)]
    values = [leaf * 1 for leaf in leaves]
    buffer = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
    for step in steps:
        a, b = values[step.a % len(values)], values[step.b % len(values)]
        if step.kind == "one":
            values.append(ONE[step.words](a))
        elif step.kind == "two":
            values.append(TWO[step.words](a, b))
        elif step.kind == "hook":
            a.register_hook(_hook(WRITES[step.words], twin))
        elif step.kind == "function":
            values.append(Writing.apply(a, WRITES[step.words], twin))
        elif step.kind == "buffer":
            _write_buffer(buffer, step.words)
        else:
            values.append(_region(ONE[step.words], a, buffer, step.kind == "reentrant", twin))
    total = torch.stack(
        [(v * torch.arange(1.0, 7.0, dtype=torch.float64)).sum() * (i + 1) for i, v in enumerate(values)]
    )
    total.sum().backward()
    return [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]


def _region(op: Callable[[T], T], a: T, buffer: T, reentrant: bool, twin: bool) -> T:
    if twin:
        return op(a * buffer.clone()).sin()
    return checkpoint(lambda t: op(t * buffer).sin(), a, use_reentrant=reentrant)


@each
@pytest.mark.filterwarnings("ignore")
@given(_steps())
def test_hooks_and_regions(steps: list[Step]) -> None:
    right = gradients(steps, twin=True)
    try:
        plain: list[T] | None = gradients(steps, twin=False)
    except RuntimeError as refusal:
        note(f"plain PyTorch refuses: {refusal}")
        plain = None
    harmless = plain is not None and all(torch.allclose(p, r) for p, r in zip(plain, right, strict=True))
    for context in (gradmend.watch, gradmend.heal):
        note(context.__name__)
        stopped: RuntimeError | None = None
        try:
            with context() as session:
                got = gradients(steps, twin=False)
        except RuntimeError as error:
            stopped = error
        if stopped is not None:
            # A region may read another value, and the gradient happen not to show it.
            assert not harmless or "GM208" in str(stopped), "a right program was stopped"
            continue
        assert all(torch.allclose(g, r) for g, r in zip(got, right, strict=True)), "silently wrong"
        if harmless and context is gradmend.watch:
            assert not session.conflicts, "a right program was reported"


@each
@pytest.mark.filterwarnings("ignore")
@given(_steps())
def test_installed_and_audited_programs_go_on_as_they_are(steps: list[Step]) -> None:
    right = gradients(steps, twin=True)
    try:
        plain = gradients(steps, twin=False)
    except RuntimeError:
        return
    wrong = not all(torch.allclose(p, r) for p, r in zip(plain, right, strict=True))
    gradmend.install()
    try:
        assert all(map(torch.equal, gradients(steps, twin=False), plain))
    finally:
        gradmend.uninstall()
    with gradmend.audit() as verdict:
        assert all(map(torch.equal, gradients(steps, twin=False), plain))
    if not verdict.unable:
        assert verdict.is_wrong or not wrong, "silence"
        assert wrong or not verdict.is_wrong or verdict.stopped, "a false alarm"
