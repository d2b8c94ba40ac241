"""Optimizers for mixtures of dense and row-sparse gradients: only the rows looked up are touched, and hold state."""

from gradmend.sparse.optim.adagrad import RowAdagrad
from gradmend.sparse.optim.adam import RowAdam, RowAdamW
from gradmend.sparse.optim.sgd import RowSGD

__all__ = ["RowAdagrad", "RowAdam", "RowAdamW", "RowSGD"]
