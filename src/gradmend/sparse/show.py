"""How a sparse tensor looks: one line of facts, and a small picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gradmend.sparse.pattern import Pattern
    from gradmend.sparse.tensor import SparseTensor

_SHADES = " ·░▒▓█"


def describe(S: SparseTensor) -> str:
    shape = " x ".join(str(n) for n in S.shape)
    values = S._values.detach()
    facts = [f"{S.nnz} entries", f"{100 * S._pattern.density:.3g}% full", str(S.dtype).removeprefix("torch.")]
    if S.device.type != "cpu":
        facts.append(str(S.device))
    if S.requires_grad:
        facts.append("requires_grad" if S.is_leaf else f"grad_fn={type(S.grad_fn).__name__}")
    line = f"SparseTensor({shape}, {', '.join(facts)})"
    if type(values) is not torch.Tensor or values.is_meta:
        return line
    if 0 < S.nnz <= 6 and values.dim() == 1:
        places = zip(S._pattern._indices.t().tolist(), values.tolist(), strict=True)
        line += "\n" + "\n".join(f"  {tuple(at)}: {value:.6g}" for at, value in places)
    if S._pattern.ndim == 2 and S.nnz > 0:
        line += "\n" + spy(S._pattern)
    return line


def spy(pattern: Pattern, width: int = 32, height: int = 12) -> str:
    """Darker where a larger part of the cell is filled; any entry at all leaves a mark."""
    size = pattern.size if pattern.ndim > 1 else (1, *pattern.size)
    rows, cols = size[0], size[-1]
    if rows == 0 or cols == 0:
        return "(empty)"
    height, width = min(height, rows), min(width, cols)
    index = pattern.canonical()._indices.cpu()
    # Doubles: index * width may not fit in int64.
    r = (index[0].double() * height / rows).long() if pattern.ndim > 1 else torch.zeros_like(index[0])
    c = (index[-1].double() * width / cols).long()
    counts = torch.bincount(r * width + c, minlength=height * width).view(height, width)
    full = (rows / height) * (cols / width)
    lines = []
    for line in counts.tolist():
        marks = ""
        for n in line:
            level = 0 if n == 0 else max(1, min(5, round(5 * (n / full) ** 0.5)))
            marks += _SHADES[level]
        lines.append(f"  │{marks}│")
    return "\n".join([f"  ┌{'─' * width}┐", *lines, f"  └{'─' * width}┘"])
