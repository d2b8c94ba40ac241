"""What an op keeps for backward, and why: `saves("exp")`, `by_node("ExpBackward0")`.

Every answer comes from the installed torch: its derivatives.yaml, or, for ops made of others, a tiny run.
"""

from __future__ import annotations

from gradmend.story.knowledge._composite import Measured
from gradmend.story.knowledge._entries import Entry, Formula
from gradmend.story.knowledge._knowledge import Knowledge
from gradmend.story.knowledge._lookup import UnknownOp, by_node, saves

__all__ = ["Entry", "Formula", "Knowledge", "Measured", "UnknownOp", "by_node", "saves"]
