"""Small programs with a known answer, one for each road on which a gradient could go wrong in silence.

On a torch that nobody has tried, they tell which roads still hold: `trust.py` runs them in a child. It loads this file as
a program of the user's, since the taps pass over what lines of Gradmend itself do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Canary(NamedTuple):
    road: str
    about: str  # what can't be seen where it fails
    run: Callable[[], None]


CANARIES: dict[str, Canary] = {}


def canary(about: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(run: Callable[[], None]) -> Callable[[], None]:
        CANARIES[run.__name__] = Canary(run.__name__, about, run)
        return run

    return add


class _Failed(Exception):
    pass


def _watched(program: Callable[[], Any], rule: str | None = None) -> None:
    """watch() must raise, by this rule where another road would find something too."""
    import gradmend

    try:
        with gradmend.watch():
            program()
    except gradmend.ConflictError as error:
        if rule is None or error.conflict.rule == rule:
            return
        raise _Failed(f"watch() told {error.conflict.rule}, not {rule}") from None
    raise _Failed("watch() said nothing")


def _healed(program: Callable[[], Any], right: list[float]) -> None:
    """watch() must raise, and heal() give the gradient that is right."""
    import gradmend

    _watched(program)
    with gradmend.heal():
        got = program()
    if got.tolist() != right:
        raise _Failed(f"heal() gave {got.tolist()}, right is {right}")


def _stopped(program: Callable[[], Any]) -> None:
    """watch() must raise, and so must heal(): there is no old value to give."""
    import gradmend

    _watched(program)
    try:
        with gradmend.heal():
            program()
    except gradmend.GradmendError:
        return
    raise _Failed("heal() went on")


def _leaf() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0], requires_grad=True)


def _square(write: Callable[[torch.Tensor], Any]) -> Callable[[], Any]:
    """h * h, then a write to h, then backward: the gradient is 2, 4, 6."""

    def program() -> Any:
        x = _leaf()
        h = x.clone()
        y = h * h
        with torch.no_grad():
            write(h)
        y.sum().backward()
        return x.grad

    return program


_RIGHT = [2.0, 4.0, 6.0]


# ------------------------------------------------------------- the ledger itself


@canary("in-place methods, operators, `x[...] = y` and `out=`")
def writes() -> None:
    _healed(_square(lambda h: h.add_(1)), _RIGHT)
    _healed(_square(lambda h: h.__imul__(3)), _RIGHT)
    _healed(_square(lambda h: h.__setitem__(0, 5.0)), _RIGHT)
    _healed(_square(lambda h: torch.add(h, 1, out=h)), _RIGHT)
    _healed(_square(lambda h: torch.relu_(h.neg_())), _RIGHT)
    _healed(_square(lambda h: torch.ops.aten.mul_.Tensor(h, h)), _RIGHT)


@canary("writes to other parts of a tensor that was saved")
def views() -> None:
    _healed(_square(lambda h: h[1:].mul_(10)), _RIGHT)
    _healed(_square(lambda h: h.view(3, 1)[::2].zero_()), _RIGHT)


@canary("writes by names that Gradmend does not know, which only the version counter tells")
def counters() -> None:
    untapped: Any = torch._C.TensorBase.mul_
    _stopped(_square(lambda h: untapped(h, 2)))


@canary("writes through `.data`, and other memory put under a tensor")
def data() -> None:
    _healed(_square(lambda h: h.data.add_(1)), _RIGHT)
    _healed(_square(lambda h: h.detach().add_(1)), _RIGHT)

    def assigned() -> Any:
        x, w = _leaf(), torch.nn.Parameter(torch.ones(3))
        y = x * w
        w.data = torch.full((3,), 7.0)
        y.sum().backward()
        return x.grad

    _healed(assigned, [1.0, 1.0, 1.0])


@canary("memory that numpy and others write to")
def escapes() -> None:
    _stopped(_square(lambda h: h.detach().numpy().__setitem__(0, 50.0)))


@canary("saved tensors below hooks of the program's own")
def hooks() -> None:
    def program() -> Any:
        x = _leaf()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            h = x.clone()
            y = h * h
        h.add_(1)
        y.sum().backward()
        return x.grad

    _healed(program, _RIGHT)


@canary("which of the saved tensors a backward reads")
def slots() -> None:
    import gradmend

    norm = torch.nn.BatchNorm1d(1)
    x = torch.tensor([[1.0], [2.0]], requires_grad=True)
    with gradmend.watch():
        y = norm(x)
        norm(x.detach() * 3)  # writes the running statistics, which no backward in training reads
        y.sum().backward()


# --------------------------------------------------------------------- optimizers


def _stepped(**options: Any) -> Callable[[], Any]:
    def program() -> Any:
        w = _leaf()
        optimizer = torch.optim.SGD([w], lr=0.1, **options)
        first, second = (w * 2).sum(), (w * w).sum()
        first.backward()
        optimizer.step()
        w.grad = None
        second.backward()
        return w.grad

    return program


@canary("steps of optimizers between a forward and its backward")
def steps() -> None:
    _healed(_stepped(foreach=False), _RIGHT)


@canary("steps of optimizers over many tensors at once (foreach)")
def foreach() -> None:
    _healed(_stepped(foreach=True), _RIGHT)
    _healed(_square(lambda h: torch._foreach_mul_([h], 2.0)), _RIGHT)


@canary("fused steps of optimizers, which no version counter tells")
def fused() -> None:
    _healed(_stepped(fused=True), _RIGHT)


@canary("collectives of torch.distributed, which no version counter tells")
def collectives() -> None:
    import torch.distributed as dist

    import gradmend

    if not dist.is_available():
        return
    names = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "recv")
    with gradmend.watch():
        bare = [name for name in names if not hasattr(getattr(dist, name), "__gradmend_original__")]
    if bare:
        raise _Failed(f"torch.distributed.{bare[0]} is not tapped")


# --------------------------------------------------------------- custom Functions


class _OnCtx(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.x * grad


class _OnCtxLater(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.kept = {"x": inputs[0]}

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.kept["x"] * grad


class _Unmarked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x *= 2
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 2 * grad


# Bound when this module is loaded, as programs do: before any context is entered.
_on_ctx, _on_ctx_later, _unmarked = _OnCtx.apply, _OnCtxLater.apply, _Unmarked.apply


@canary("tensors that a custom Function keeps on ctx")
def ctx() -> None:
    for apply in (_on_ctx, _on_ctx_later):

        def program(apply: Any = apply) -> Any:
            x = _leaf()
            h = x.clone()
            y = apply(h)
            h.data += 1
            y.sum().backward()
            return x.grad

        _healed(program, _RIGHT)


@canary("custom Functions that write an input and do not say so")
def unmarked() -> None:
    def program() -> None:
        h = _leaf().clone()
        (_unmarked(h) + h).sum().backward()

    _watched(program, "GM206")


@canary("gradients that a hook writes in place")
def gradients() -> None:
    def program() -> Any:
        x = _leaf()
        a, b = x * 2, x * 3
        b.register_hook(lambda grad: grad.mul_(10))
        (a + b).backward(torch.ones(3))
        return x.grad

    _healed(program, [32.0, 32.0, 32.0])


@canary("values edited outside of autograd, and used after that")
def edits() -> None:
    def program() -> None:
        x = _leaf()
        h = x * x
        h.data.mul_(10)
        (h * h).sum().backward()

    _watched(program)


class _Nested(torch.autograd.Function):
    """backward() inside backward(), so deep that autograd goes on in a thread of its own, as it does for a GPU."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, depth: int, program: Callable[[], Any]) -> torch.Tensor:
        ctx.depth, ctx.program = depth, program
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, None, None]:
        with torch.enable_grad():
            if ctx.depth == 0:
                return ctx.program(), None, None
            x = _leaf()
            _nested(x, ctx.depth - 1, ctx.program).sum().backward()
        return x.grad, None, None


_nested = _Nested.apply
_DEEP = 64  # autograd starts a thread at the sixtieth


@canary("backward passes in threads of autograd's own, as for every GPU")
def threads() -> None:
    def program() -> Any:
        x = _leaf()
        _nested(x, _DEEP, _square(lambda h: h.add_(1))).sum().backward()
        return x.grad

    _healed(program, _RIGHT)


# --------------------------------------------------------------------- checkpoint


def _checkpointed(reentrant: bool) -> Callable[[], Any]:
    from torch.utils.checkpoint import checkpoint

    def program() -> None:
        x, scale = _leaf(), torch.tensor(2.0)
        y: Any = checkpoint(lambda v: (v * scale).exp(), x, use_reentrant=reentrant)
        scale.data.mul_(3)
        y.sum().backward()

    return program


@canary("checkpointed regions (use_reentrant=False)")
def checkpoint() -> None:
    _stopped(_checkpointed(False))


@canary("checkpointed regions (use_reentrant=True)")
def reentrant() -> None:
    _stopped(_checkpointed(True))


# ----------------------------------------------------------------------- running


def failure_of(road: str) -> str | None:
    """Why this road does not hold on the installed torch; None when it does."""
    torch.manual_seed(0)
    try:
        CANARIES[road].run()
    except _Failed as failed:
        return str(failed)
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return None
