"""Texts by topic: bags of words as sparse tensors, through a DataLoader with workers, into a table with sparse gradients.

python examples/sparse_bag_of_words.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sparse_curve import draw, options, steps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from gradmend.sparse import Pattern, SparseTensor
from gradmend.sparse.nn import SparseEmbeddingBag
from gradmend.sparse.optim import RowAdam

TOPICS = 10


class Texts(Dataset[tuple[SparseTensor, int]]):
    """Each text has words of its topic and words of no topic; the i-th is always the same."""

    def __init__(self, count: int, words: int) -> None:
        self.count, self.words = count, words

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[SparseTensor, int]:
        g = torch.Generator().manual_seed(i)
        topic = int(torch.randint(0, TOPICS, (1,), generator=g))
        common = (torch.rand(60, generator=g) ** 3 * self.words).long()
        own = (torch.rand(20, generator=g) ** 2 * (self.words // TOPICS)).long() * TOPICS + topic
        word, times = torch.cat([common, own]).unique(return_counts=True)
        text = SparseTensor(Pattern.sorted(word[None], (self.words,)), times.float().log1p())
        return text, topic


class Classifier(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.bag = SparseEmbeddingBag(words, 32, mode="sum", _weight=torch.zeros(words, 32).normal_(0, 0.05))
        self.head = nn.Linear(32, TOPICS)

    def forward(self, texts: SparseTensor) -> Tensor:
        return self.head(F.relu(self.bag(texts)))


def main(words: list[str] | None = None) -> list[float]:
    parser = options(__doc__, "sparse_bag_of_words", 150)
    parser.add_argument("--words", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(words)
    torch.manual_seed(0)
    net = Classifier(given.words)
    optimizer = RowAdam(net.parameters(), lr=0.005)
    loader = DataLoader(Texts(64 * given.steps, given.words), batch_size=64, num_workers=given.workers)
    losses: list[float] = []
    right: list[float] = []
    batches = iter(loader)
    for _ in steps(given.steps, lambda: f"loss {losses[-1]:.3f}, right {right[-1]:.0%}"):
        texts, topic = next(batches)
        optimizer.zero_grad()
        out = net(texts)
        loss = F.cross_entropy(out, topic)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        right.append((out.argmax(1) == topic).double().mean().item())
    print(f"{sum(right[-10:]) / len(right[-10:]):.1%} of the last texts, none seen before, were right")
    draw(given.out, f"Texts of {given.words:,} words: training loss", {"loss": losses})
    return losses


if __name__ == "__main__":
    main()
