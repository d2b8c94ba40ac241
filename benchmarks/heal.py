"""heal() beside PyTorch's allow_mutation_on_saved_tensors and beside clones written by hand, in one run.

    python benchmarks/heal.py [--full] [--only NAME]

Each program is written twice: in place, as people write it, and with clones, as plain PyTorch wants it. All
must give the clones' gradient; who does not is told as WRONG. Turns are taken within each round.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

import gradmend

clock = time.perf_counter
Gradient = torch.Tensor
Program = Callable[[bool], Gradient]  # True: with clones


def slices(count: int) -> Program:
    """Rows of one tensor, each used and then overwritten."""
    base = torch.linspace(-1, 1, count * 10).view(count, 10)

    def run(clones: bool) -> Gradient:
        x = base.clone().requires_grad_()
        b = x * 1
        total = torch.zeros(())
        for i in range(count):
            row = b[i].clone() if clones else b[i]
            total = total + (row**2).sum()
            b[i] = 0.0
        total.backward()
        assert x.grad is not None
        return x.grad

    return run


def scratch(count: int) -> Program:
    """Rows of a wide scratch buffer without history, each used and then overwritten."""
    base = torch.linspace(-1, 1, count * 250).view(count, 250)

    def run(clones: bool) -> Gradient:
        w = torch.ones(250, requires_grad=True)
        b = base.clone()
        total = torch.zeros(())
        for i in range(count):
            row = b[i].clone() if clones else b[i]
            total = total + (row * w).sum()
            b[i] = 0.0
        total.backward()
        assert w.grad is not None
        return w.grad

    return run


def filled(count: int) -> Program:
    """A buffer filled row by row, each from the one before: no byte that backward needs is overwritten."""
    start = torch.linspace(-1, 1, 32)

    def run(clones: bool) -> Gradient:
        w = torch.full((32,), 0.5, requires_grad=True)
        buffer = torch.zeros(count + 1, 32)
        buffer[0] = start
        for i in range(count):
            before = buffer[i].clone() if clones else buffer[i]
            buffer[i + 1] = torch.tanh(before * w)
        buffer[count].sum().backward()
        assert w.grad is not None
        return w.grad

    return run


def rnn() -> Program:
    """A recurrent net whose states are rows of one buffer."""
    torch.manual_seed(0)
    x = torch.randn(100, 16, 32)
    cell = nn.Linear(64, 32)

    def run(clones: bool) -> Gradient:
        cell.zero_grad()
        states = torch.zeros(101, 16, 32)
        for t in range(100):
            state = states[t].clone() if clones else states[t]
            states[t + 1] = torch.tanh(cell(torch.cat([x[t], state], 1)))
        states[1:].square().mean().backward()
        assert cell.weight.grad is not None
        return cell.weight.grad.clone()

    return run


def table() -> Program:
    """Dynamic programming over a 2-D table (soft edit distance), cell by cell."""
    torch.manual_seed(0)
    n = 20
    cost = torch.rand(n, n)

    def run(clones: bool) -> Gradient:
        c = cost.clone().requires_grad_()
        d = torch.zeros(n + 1, n + 1)
        for i in range(1, n + 1):
            for j in range(1, n + 1):
                near = torch.stack([d[i - 1, j], d[i, j - 1], d[i - 1, j - 1]])
                d[i, j] = c[i - 1, j - 1] - torch.logsumexp(-near, 0)
        d[n, n].backward()
        assert c.grad is not None
        return c.grad

    return run


def gan() -> Program:
    """The discriminator steps between the generator's forward and its backward."""
    x = torch.linspace(-1, 1, 64 * 32).view(64, 32)

    def run(clones: bool) -> Gradient:
        torch.manual_seed(0)
        generator = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        critic = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
        for _ in range(20):
            frozen = {k: v.clone() for k, v in critic.named_parameters()} if clones else None
            fake = generator(x)
            judged = torch.func.functional_call(critic, frozen, (fake,)) if frozen else critic(fake)
            optimizer.zero_grad()
            (critic(x).mean() - critic(fake.detach()).mean()).backward()
            optimizer.step()
            judged.mean().backward()
        grad = generator[0].weight.grad
        assert grad is not None
        return grad

    return run


def per_op() -> Program:
    """One thousand saves, each overwritten once."""

    def run(clones: bool) -> Gradient:
        x = torch.full((16,), 0.5, requires_grad=True)
        y = x * 1
        for _ in range(500):
            z = y.clone() if clones else y
            y = z * z
            if clones:
                z = z.clone()
            z.add_(1)
        y.sum().backward()
        assert x.grad is not None
        return x.grad

    return run


def nothing_to_heal() -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(64, 64)

    def run(clones: bool) -> Gradient:
        for _ in range(10):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        grad = model[0].weight.grad
        assert grad is not None
        return grad.clone()

    return run


PROGRAMS: dict[str, Callable[[], Program]] = {
    "1,000 saves, each overwritten": per_op,
    "400 slices": lambda: slices(400),
    "4,000 slices": lambda: slices(4000),
    "400 slices of a wide buffer": lambda: scratch(400),
    "400 rows, each from the last": lambda: filled(400),
    "RNN that fills a buffer": rnn,
    "2-D table, cell by cell": table,
    "20 GAN steps": gan,
    "plain training loop": nothing_to_heal,
}

Context = Callable[[], AbstractContextManager[Any]]
CONTEXTS: dict[str, tuple[Context, bool]] = {
    "clones by hand": (contextlib.nullcontext, True),
    "heal": (gradmend.heal, False),
    "allow_mutation": (torch.autograd.graph.allow_mutation_on_saved_tensors, False),
    "watch": (gradmend.watch, False),
}


def once(program: Program, context: Context, clones: bool) -> tuple[float, Gradient, int]:
    """Seconds, the gradient, and the bytes that heal() kept. Entering a context is not in the time."""
    kept = 0
    with context() as session:
        start = clock()
        gradient = program(clones)
        taken = clock() - start
    if isinstance(session, gradmend.model.Session):
        kept = sum(c.healed_bytes for c in session.conflicts)
    return taken, gradient, kept


def compare(name: str, make: Callable[[], Program], seconds: float) -> None:
    program = make()
    # Nothing to heal is measured against watch(), which the others would stop.
    names = ["clones by hand", "heal", "allow_mutation"] + (["watch"] if make is nothing_to_heal else [])
    taken: dict[str, list[float]] = {n: [] for n in names}
    notes: dict[str, str] = dict.fromkeys(names, "")
    right = program(True)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken["heal"]) < 3:
        for n in names:
            if notes[n].startswith("raises") or (taken[n] and taken[n][0] > seconds):
                continue
            context, clones = CONTEXTS[n]
            try:
                spent, gradient, kept = once(program, context, clones)
            except RuntimeError as error:
                notes[n] = f"raises {type(error).__name__}"
                continue
            taken[n].append(spent)
            if not torch.allclose(gradient, right, rtol=1e-4, atol=1e-6):
                notes[n] = "WRONG gradient"
            elif n == "heal":
                notes[n] = f"{kept:,} bytes kept"
    print(f"\n{name}")
    hand = taken["clones by hand"]
    for n in names:
        times = taken[n]
        if not times:
            print(f"  {n:<16} {notes[n]}")
            continue
        ratio = statistics.median(t / h for t, h in zip(times, hand, strict=False))
        print(
            f"  {n:<16} {1e3 * min(times):9.2f} ms   {min(times) / min(hand):6.2f}x of the fastest   "
            f"{ratio:6.2f}x median   {notes[n]}",
            flush=True,
        )


COLD = "400 slices, once, in a fresh process"


def first_use(mode: str) -> float:
    """Seconds from entering the context to having left it, torch being imported: what a short script feels."""
    context, clones = CONTEXTS[mode]
    program = slices(400)
    start = clock()
    with context():
        program(clones)
    return clock() - start


def compare_cold(rounds: int, cpu: bool) -> None:
    names = ["clones by hand", "heal", "allow_mutation"]
    taken: dict[str, list[float]] = {n: [] for n in names}
    for _ in range(rounds):
        for n in names:
            command = [sys.executable, __file__, "--first-use", n, *(["--cpu"] if cpu else [])]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            taken[n].append(float(out))
    print(f"\n{COLD}")
    for n in names:
        best, hand, healed = min(taken[n]), min(taken["clones by hand"]), min(taken["heal"])
        print(
            f"  {n:<16} {1e3 * best:9.2f} ms   {best / hand:6.2f}x of clones   {best / healed:6.2f}x of heal"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="about five minutes, steadier numbers")
    parser.add_argument("--only", choices=[*PROGRAMS, COLD], help="one program")
    parser.add_argument("--first-use", choices=list(CONTEXTS), help=argparse.SUPPRESS)
    parser.add_argument("--cpu", action="store_true", help="count CPU time: steadier on a busy machine")
    args = parser.parse_args()
    global clock
    if args.cpu:
        clock = time.process_time
    torch.set_num_threads(1)
    if args.first_use:
        print(first_use(args.first_use))
        return
    print(f"torch {torch.__version__}, 1 thread; ratios to clones written by hand")
    for name, make in PROGRAMS.items():
        if not args.only or name == args.only:
            compare(name, make, 40.0 if args.full else 6.0)
    if args.only in (None, COLD):
        compare_cold(10 if args.full else 3, args.cpu)


if __name__ == "__main__":
    import gradmend.model

    main()
