"""How long `gradmend fix` takes on ten broken programs, before and after: `python benchmarks/fix.py --before TREE`.

TREE is the `src` folder of an older checkout (`git worktree add ../before COMMIT`). Each program runs in both trees in turn,
so that a busy machine slows both; the figure is the median of their quotients.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

HEAD = """
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
data = [(torch.randn(64, 32), torch.randn(64, 1)) for _ in range(200)]
for _ in range(600):  # a second or so of preparing data, as real programs have
    data = [(x * 0.999, y) for x, y in data]
"""
TRAIN = """
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for x, y in data[:30]:
    loss = F.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(round(loss.item(), 4))
"""
BLOCK = "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 1)\n    def forward(self, x):\n"

PROGRAMS = {
    "residual": BLOCK
    + "        h = torch.relu(self.a(x))\n        h += x\n        return self.b(h)\n"
    + TRAIN,
    "inplace_flag": BLOCK
    + "        h = torch.sigmoid(self.a(x))\n        h = F.relu(h, inplace=True)\n        h = F.dropout(h, 0.1, self.training, inplace=True)\n        return self.b(h)\n"
    + TRAIN,
    "mask": BLOCK
    + "        h = torch.softmax(self.a(x), -1)\n        h[h < 0.01] = 0\n        return self.b(h)\n"
    + TRAIN,
    "slice": BLOCK
    + "        h = torch.tanh(self.a(x))\n        h[:, :4] *= 2\n        return self.b(h)\n"
    + TRAIN,
    "two_conflicts": BLOCK
    + "        h = torch.tanh(self.a(x))\n        h *= 2\n        g = torch.exp(h * 0.1)\n        g -= 1\n        return self.b(g)\n"
    + TRAIN,
    "alias": BLOCK
    + "        h = torch.relu(self.a(x))\n        v = h.view(-1)\n        v[::2] *= 0.5\n        return self.b(h)\n"
    + TRAIN,
    "gan": """
d = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
g = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))
od, og = torch.optim.Adam(d.parameters(), 1e-3), torch.optim.Adam(g.parameters(), 1e-3)
for x, _ in data[:15]:
    fake = g(torch.randn(64, 8))
    score = d(fake)
    d_loss = F.softplus(score).mean() + F.softplus(-d(x)).mean()
    od.zero_grad()
    d_loss.backward(retain_graph=True)
    od.step()
    g_loss = F.softplus(-score).mean()
    og.zero_grad()
    g_loss.backward()
    og.step()
print(round(g_loss.item(), 4))
""",
    "two_losses": """
enc, a, b = nn.Linear(32, 16), nn.Linear(16, 1), nn.Linear(16, 4)
opt = torch.optim.SGD([*enc.parameters(), *a.parameters(), *b.parameters()], 0.01)
for x, y in data[:30]:
    z = torch.tanh(enc(x))
    la, lb = F.mse_loss(a(z), y), b(z).abs().mean()
    opt.zero_grad()
    la.backward()
    lb.backward()
    opt.step()
print(round(la.item(), 4))
""",
    "views": """
rate = nn.Parameter(torch.tensor(0.3))
opt = torch.optim.SGD([rate], 0.01)
for _ in range(10):
    state = torch.zeros(20, 3)
    state[0, 0] = 1.0
    for t in range(1, 20):
        s, i, r = state[t - 1]
        state[t, 0] = s - rate * s * (i + 0.1)
        state[t, 1] = i + rate * s * (i + 0.1) - 0.1 * i
        state[t, 2] = r + 0.1 * i
    loss = (state[:, 1] - 0.2).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(round(loss.item(), 5))
""",
    "by_hand": """
w = torch.randn(32, 1, requires_grad=True)
for x, y in data[:20]:
    loss = F.mse_loss(x @ w, y)
    loss.backward()
    w -= 0.01 * w.grad
    w.grad.zero_()
print(round(loss.item(), 4))
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", metavar="TREE", help="the src folder of an older checkout")
    parser.add_argument("--limit", type=float, default=900, metavar="S", help="seconds for one fix (900)")
    parser.add_argument("programs", nargs="*", help=f"which of {', '.join(PROGRAMS)}")
    args = parser.parse_args()
    here = str(Path(__file__).resolve().parents[1] / "src")
    trees = {"before": args.before, "after": here} if args.before else {"after": here}
    quotients: list[float] = []
    print(f"{'program':<14}" + "".join(f"{name:>29}" for name in trees))
    for name in args.programs or PROGRAMS:
        took = {which: timed(HEAD + PROGRAMS[name], tree, args.limit) for which, tree in trees.items()}
        row = "".join(f"{wall:>8.1f} s, cpu {cpu:>6.1f} s ({code})" for wall, cpu, code in took.values())
        if len(took) == 2:
            quotients.append(took["before"][0] / took["after"][0])
            row += f"{quotients[-1]:>9.1f}x, cpu {took['before'][1] / took['after'][1]:.1f}x"
        print(f"{name:<14}{row}", flush=True)
    if quotients:
        print(
            f"median: {statistics.median(quotients):.1f}x faster; in brackets the exit code, 0 for a proven fix"
        )


def timed(program: str, tree: str, limit: float) -> tuple[float, float, int | str]:
    """Wall and processor seconds of `fix`, and its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(program)
        env = {**os.environ, "PYTHONPATH": tree, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        began, before = time.perf_counter(), _cpu()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "gradmend", "fix", "train.py"],
                cwd=folder,
                env=env,
                capture_output=True,
                timeout=limit,
            )
            code: int | str = done.returncode
        except subprocess.TimeoutExpired:
            code = "late"
        return time.perf_counter() - began, _cpu() - before, code


def _cpu() -> float:
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
