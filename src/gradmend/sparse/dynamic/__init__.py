"""Patterns that change during training: weak entries go, others come, and the optimizer's state goes along."""

from gradmend.sparse.dynamic.carry import repattern
from gradmend.sparse.dynamic.gradual import GradualMagnitude
from gradmend.sparse.dynamic.regrow import SET, RigL

__all__ = ["SET", "GradualMagnitude", "RigL", "repattern"]
