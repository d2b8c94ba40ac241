"""A recommender of two towers, with a table of ten million users: only the rows of a batch are touched in a step.

    python examples/sparse_two_tower.py
    python examples/sparse_two_tower.py --users 100000000      # 6.4 GB of table; moments only for users seen

Each user likes one of 20 kinds of item; a few users are active, most are seldom seen.
"""

from __future__ import annotations

import importlib
import sys

import torch
import torch.nn.functional as F
from sparse_curve import draw, options, steps
from torch import Tensor, nn

from gradmend.sparse.nn import SparseEmbedding
from gradmend.sparse.optim import RowAdamW

KINDS = 20


class Towers(nn.Module):
    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        # Zeros come with the pages that are written; a table that is drawn at random is written whole, once.
        self.users = SparseEmbedding(users, 16, _weight=torch.empty(users, 16).normal_(0, 0.1))
        self.items = SparseEmbedding(items, 16, _weight=torch.empty(items, 16).normal_(0, 0.1))
        self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return self.left(self.users(user)) @ self.right(self.items(item)).t()


def peak() -> str:
    if sys.platform == "win32":
        return ""
    resource = importlib.import_module("resource")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)
    return f"; peak memory {most:.1f} GB"


def main(words: list[str] | None = None) -> list[float]:
    parser = options(__doc__, "sparse_two_tower", 300)
    parser.add_argument("--users", type=int, default=10_000_000)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=1024)
    given = parser.parse_args(words)
    torch.manual_seed(0)
    net = Towers(given.users, given.items)
    optimizer = RowAdamW(net.parameters(), lr=0.01, weight_decay=1e-4)
    losses: list[float] = []
    for _ in steps(given.steps, lambda: f"loss {losses[-1]:.3f}"):
        user = (torch.rand(given.batch) ** 6 * given.users).long()
        # The item's kind is the user's: items are numbered by kind.
        item = (torch.rand(given.batch) * (given.items // KINDS)).long() * KINDS + user % KINDS
        optimizer.zero_grad()
        score = net(user, item)
        same = (user[:, None] % KINDS == item[None, :] % KINDS).float()
        loss = F.binary_cross_entropy_with_logits(score, same, pos_weight=torch.tensor(float(KINDS - 1)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    held = optimizer.state_dict()["state"][0]["rows"].shape[0]
    print(f"{held} of {given.users} users have moments{peak()}")
    draw(given.out, f"Two towers, {given.users:,} users: training loss", {"loss": losses})
    return losses


if __name__ == "__main__":
    main()
