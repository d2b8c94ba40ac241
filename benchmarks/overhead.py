"""What Gradmend costs: the time of a training step under each of its modes, as a ratio to plain PyTorch.

    python benchmarks/overhead.py [--full] [--only NAME] [--modes install,watch] [--profile MODE] [--json OUT]

Modes take turns within each round, so that a busy machine slows all of them alike. A ratio is told twice: of the
fastest steps, and the median over rounds of (mode / plain). Entering a mode is not in the step's time.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

import gradmend

Step = Callable[[], None]
clock = time.perf_counter


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, n, d))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    def __init__(self, width: int, depth: int, words: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(depth)))
        self.head = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)))


def _training(model: nn.Module, loss: Callable[[], torch.Tensor], fused: bool = False) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def tiny_mlp() -> Step:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    x, y = torch.randn(128, 64), torch.randint(10, (128,))
    return _training(model, lambda: nn.functional.cross_entropy(model(x), y))


def small_cnn() -> Step:
    def stage(i: int, o: int) -> list[nn.Module]:
        return [nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]

    model = nn.Sequential(
        *stage(3, 16),
        *stage(16, 32),
        *stage(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    x, y = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    return _training(model, lambda: nn.functional.cross_entropy(model(x), y))


def _language(width: int, depth: int, batch: int, length: int) -> Step:
    model = Transformer(width, depth)
    tokens = torch.randint(256, (batch, length))
    return _training(
        model, lambda: nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    )


def small_transformer() -> Step:
    return _language(80, 2, 8, 64)


def transformer() -> Step:
    return _language(192, 4, 8, 96)


WORKLOADS: dict[str, tuple[Callable[[], Step], int]] = {  # with steps a round
    "tiny MLP": (tiny_mlp, 20),
    "small CNN": (small_cnn, 20),
    "small transformer": (small_transformer, 5),
    "transformer": (transformer, 2),
}


@contextlib.contextmanager
def _installed() -> Any:
    gradmend.install()
    try:
        yield
    finally:
        gradmend.uninstall()


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": contextlib.nullcontext,
    "install": _installed,
    "watch": gradmend.watch,
    "heal": gradmend.heal,
    "watch(paranoid)": lambda: gradmend.watch(paranoid=True),
    "anomaly mode": lambda: torch.autograd.detect_anomaly(check_nan=False),
    "allow_mutation": torch.autograd.graph.allow_mutation_on_saved_tensors,
}


def timed(step: Step, mode: str, steps: int) -> float:
    """Seconds a step, in this mode. The first steps of it are not counted: a program arms once, and trains for long."""
    with MODES[mode]():
        for _ in range(1 + steps // 5):
            step()
        start = clock()
        for _ in range(steps):
            step()
        return (clock() - start) / steps


def measure(make: Callable[[], Step], steps: int, seconds: float, modes: list[str]) -> dict[str, list[float]]:
    torch.manual_seed(0)
    step = make()
    for _ in range(3):
        step()
    taken: dict[str, list[float]] = {mode: [] for mode in modes}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken[modes[-1]]) < 5:
        for mode in modes:
            taken[mode].append(timed(step, mode, steps))
    return taken


def saved_bytes(make: Callable[[], Step]) -> int:
    """Bytes that one step keeps for backward: what paranoid mode hashes twice."""
    total = 0

    def pack(t: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total += t.numel() * t.element_size()
        return t

    step = make()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        step()
    return total


def told(name: str, taken: dict[str, list[float]], kept: int) -> dict[str, Any]:
    plain = taken["plain"]
    print(
        f"\n{name}: {1e3 * min(plain):.2f} ms a step, {kept / 1e6:.1f} MB kept for backward, {len(plain)} rounds"
    )
    out: dict[str, Any] = {"plain_ms": 1e3 * min(plain), "rounds": len(plain)}
    for mode, times in taken.items():
        if mode == "plain":
            continue
        fastest = min(times) / min(plain)
        median = statistics.median(t / p for t, p in zip(times, plain, strict=True))
        line = f"  {mode:<16} {fastest:6.3f}x of the fastest   {median:6.3f}x median"
        if mode == "watch(paranoid)" and "watch" in taken:
            extra = min(times) - min(taken["watch"])
            if extra > 0:
                line += f"   {2 * kept / extra / 1e9:.1f} GB/s fingerprinted"
        print(line, flush=True)
        out[mode] = {"fastest": fastest, "median": median}
    return out


def entered(modes: list[str]) -> None:
    """What it takes to enter each of our modes and to leave it, for a program that does so at every step."""
    print("\nto enter and leave")
    for mode in modes:
        if mode in ("install", "watch", "heal"):
            best = float("inf")
            for _ in range(50):
                start = clock()
                with MODES[mode]():
                    pass
                best = min(best, clock() - start)
            print(f"  {mode:<16} {1e3 * best:6.2f} ms")


def profile(name: str, mode: str) -> None:
    make, steps = WORKLOADS[name]
    step = make()
    step()
    with MODES[mode]():
        step()
        profiler = cProfile.Profile()
        profiler.enable()
        for _ in range(steps * 20):
            step()
        profiler.disable()
    stats = pstats.Stats(profiler).sort_stats("tottime")
    stats.print_stats("gradmend|method|built-in", 25)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="about eight minutes, steadier numbers")
    parser.add_argument("--only", choices=list(WORKLOADS), help="one workload")
    parser.add_argument("--modes", default=",".join(MODES), help="comma-separated, of: " + ", ".join(MODES))
    parser.add_argument("--profile", metavar="MODE", choices=list(MODES), help="where the time goes instead")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="count CPU time: steadier on a busy machine")
    parser.add_argument("--json", metavar="OUT", help="write the ratios as JSON")
    args = parser.parse_args()
    modes = list(dict.fromkeys(["plain", *args.modes.split(",")]))
    for mode in modes:
        if mode not in MODES:
            parser.error(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    global clock
    if args.cpu:
        clock = time.process_time
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads")
    results = {}
    for name, (make, steps) in WORKLOADS.items():
        if args.only and name != args.only:
            continue
        if args.profile:
            profile(name, args.profile)
            continue
        taken = measure(make, steps, 120.0 if args.full else 22.0, modes)
        results[name] = told(name, taken, saved_bytes(make))
    if not args.profile:
        entered(modes)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    import warnings

    warnings.filterwarnings("ignore", message="Anomaly Detection")
    main()
