"""Sparse tensors and tables whose rows lie on many processes: only the rows that are needed are sent."""

from gradmend.sparse.distributed.bags import ShardedEmbeddingBag, ShardedEmbeddingBagCollection
from gradmend.sparse.distributed.checkpoint import latest, load_checkpoint, save_checkpoint
from gradmend.sparse.distributed.ddp import sparse_hook
from gradmend.sparse.distributed.embedding import ShardedEmbedding
from gradmend.sparse.distributed.matrix import ShardedSparseTensor
from gradmend.sparse.distributed.shards import Shards, traffic

__all__ = [
    "ShardedEmbedding",
    "ShardedEmbeddingBag",
    "ShardedEmbeddingBagCollection",
    "ShardedSparseTensor",
    "Shards",
    "latest",
    "load_checkpoint",
    "save_checkpoint",
    "sparse_hook",
    "traffic",
]
