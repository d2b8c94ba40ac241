"""Optimizers for the COO gradients of `nn.Embedding(sparse=True)`: only the rows looked up are touched."""

from gradmend.sparse.optim.rowwise import RowAdagrad, RowAdam

__all__ = ["RowAdagrad", "RowAdam"]
