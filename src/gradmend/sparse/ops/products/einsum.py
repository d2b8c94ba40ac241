"""einsum with one sparse operand: dense operands are read at its entries, products summed where they belong."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.place import put
from gradmend.sparse.autograd.product import autocast
from gradmend.sparse.autograd.segment import segment_sum
from gradmend.sparse.dispatch import implements
from gradmend.sparse.errors import OutsideError, SparseError
from gradmend.sparse.helpers.dims import no_more
from gradmend.sparse.ops.products.matmul import matmul
from gradmend.sparse.ops.structure.shape import sparsify
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor, make


@implements("einsum", method=False)
def einsum(equation: str, *operands: Any) -> Any:
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    inputs, output = _parse(equation, operands)
    sparse = [k for k, x in enumerate(operands) if isinstance(x, SparseTensor)]
    if len(sparse) == 2 and len(operands) == 2:
        return _two(inputs, output, operands)
    if len(sparse) != 1:
        raise SparseError(
            f"einsum takes one sparse operand, or a product of two matrices; {len(sparse)} were given."
        )
    k = sparse[0]
    dtypes = {x.dtype for x in operands}
    if len(dtypes) > 1 and set("".join(inputs)) - set(output) and not autocast(operands[k].device.type):
        said = " and ".join(sorted(str(d) for d in dtypes))
        raise SparseError(f"einsum sums products of one dtype, not of {said}: convert one with .to(dtype).")
    S = sparsify(operands[k])
    others = [(names, x) for i, (names, x) in enumerate(zip(inputs, operands, strict=True)) if i != k]
    fast = _as_product(S, inputs[k], others, output)
    if fast is not None:
        return fast
    S, names = _diagonal(S, inputs[k])
    return _at_entries(S, names, others, output)


@implements("tensordot", method=False)
def tensordot(a: Any, b: Any, dims: Any = 2, out: Any = None) -> Any:
    no_more("tensordot", {"out": out})
    if a.dtype != b.dtype and not autocast(a.device.type):
        raise SparseError(
            f"tensordot takes one dtype, not {a.dtype} and {b.dtype}: convert one with .to(dtype)."
        )
    if isinstance(dims, int):
        if not 0 <= dims <= min(a.ndim, b.ndim):
            raise SparseError(f"tensordot over {dims} dimensions of {tuple(a.shape)} and {tuple(b.shape)}.")
        over_a, over_b = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        over_a, over_b = ([_axis(x, d) for d in side] for x, side in zip((a, b), dims, strict=True))
    left = [chr(ord("a") + d) for d in range(a.ndim)]
    right = [chr(ord("A") + d) for d in range(b.ndim)]
    for i, j in zip(over_a, over_b, strict=True):
        right[j] = left[i]
    kept = [c for c in left if c not in right] + [c for c in right if c not in left]
    return einsum(f"{''.join(left)},{''.join(right)}->{''.join(kept)}", a, b)


def _axis(x: Any, d: int) -> int:
    if not -x.ndim <= d < x.ndim:
        raise OutsideError(f"dimension {d} doesn't exist: an operand has the shape {tuple(x.shape)}.")
    return d % int(x.ndim)


def _parse(equation: str, operands: tuple[Any, ...]) -> tuple[list[str], str]:
    equation = equation.replace(" ", "")
    left, arrow, output = equation.partition("->")
    inputs = left.split(",")
    if "." in equation:
        raise SparseError("einsum with a sparse operand takes letters only, not '...'.")
    if len(inputs) != len(operands) or any(len(n) != x.ndim for n, x in zip(inputs, operands, strict=True)):
        raise SparseError(
            f"einsum {equation!r} doesn't fit the operands' shapes {[tuple(x.shape) for x in operands]}."
        )
    if not arrow:
        every = "".join(inputs)
        output = "".join(sorted(n for n in set(every) if every.count(n) == 1))
    return inputs, output


def _two(inputs: list[str], output: str, operands: tuple[Any, ...]) -> Any:
    (a, b), (A, B) = inputs, operands
    if a == b == output:
        return A * B
    shared = set(a) & set(b)
    if len(a) == len(b) == 2 and len(shared) == 1 and set(output) == set(a) ^ set(b) and len(output) == 2:
        k = shared.pop()
        C = matmul(A if a[1] == k else A.t(), B if b[0] == k else B.t())
        return C if output[0] in a else C.t()
    raise SparseError("einsum of two sparse operands is a product of matrices, such as 'ij,jk->ik'.")


def _as_product(S: SparseTensor, names: str, others: list[tuple[str, Any]], output: str) -> Any:
    """'ij,jk->ik' and its kin, which have a kernel."""
    if len(others) != 1 or len(names) != 2 or names[0] == names[1] or len(others[0][0]) != 2:
        return None
    (x, X) = others[0]
    shared = set(names) & set(x)
    if len(shared) != 1 or len(set(x)) != 2:
        return None
    k = shared.pop()
    row, col = names[names.index(k) - 1], x[x.index(k) - 1]
    left = S if names[1] == k else S.t()
    right = X if x[0] == k else X.t()
    if output == row + col:
        return matmul(left, right)
    return matmul(left, right).t() if output == col + row else None


def _diagonal(S: SparseTensor, names: str) -> tuple[SparseTensor, str]:
    """A letter twice in the sparse operand: only entries where both agree."""
    unique = "".join(dict.fromkeys(names))
    if unique == names:
        return S, names
    for d, n in enumerate(names):
        if S._pattern.size[d] != S._pattern.size[names.index(n)]:
            raise SparseError(f"einsum: the letter {n!r} stands for two sizes of {tuple(S.shape)}.")
    index = S._pattern._indices
    same = torch.ones(S.nnz, dtype=torch.bool, device=S.device)
    for d, n in enumerate(names):
        same &= index[d] == index[names.index(n)]
    take = same.nonzero().squeeze(1)
    axes = [names.index(n) for n in unique]
    size = tuple(S._pattern.size[d] for d in axes)
    return make(Pattern(index[axes][:, take], size), S._values.index_select(0, take)), unique


def _at_entries(S: SparseTensor, names: str, others: list[tuple[str, Any]], output: str) -> Any:
    sizes = dict(zip(names, S._pattern.size, strict=True))
    for n, x in others:
        for letter, m in zip(n, x.shape, strict=True):
            if sizes.setdefault(letter, m) != m:
                raise SparseError(f"einsum: the letter {letter!r} stands for {sizes[letter]} and for {m}.")
    entry = next(
        c for c in "zyxwvutsrqponmlkjihgfedcbaZ" if c not in "".join([names, output, *(n for n, _ in others)])
    )
    index = S._pattern._indices
    terms, spelled = [S._values], [entry]
    for n, x in others:
        shared = [c for c in dict.fromkeys(n) if c in names]
        if not shared:
            terms.append(x)
            spelled.append(n)
            continue
        rest = "".join(dict.fromkeys(c for c in n if c not in names))
        # Letters met twice in one dense operand are its diagonal: torch's own einsum takes it.
        tidy = torch.einsum(f"{n}->{''.join(shared)}{rest}", x)
        places = tuple(index[names.index(c)] for c in shared)
        terms.append(tidy.index_select(0, places[0]) if len(places) == 1 else tidy[places])
        spelled.append(entry + rest)
    outer = [c for c in output if c not in names]
    found = torch.einsum(f"{','.join(spelled)}->{entry}{''.join(outer)}", *terms)
    kept = [c for c in names if c in output]
    return _collect(S, names, kept, outer, output, found, sizes)


def _collect(
    S: SparseTensor,
    names: str,
    kept: list[str],
    outer: list[str],
    output: str,
    found: Tensor,
    sizes: dict[str, int],
) -> Any:
    """[nnz, *outer] summed over entries that agree in the kept letters."""
    size = tuple(sizes[c] for c in kept)
    if len(kept) == len(names) and len(kept) > 1 and not outer:
        # Nothing is summed: a sparse result, its dimensions in the order asked for.
        made = S.like(found)
        return made.permute([names.index(c) for c in output])
    segs = S._pattern._segments(tuple(names.index(c) for c in kept))
    total = segment_sum(found, segs)
    if len(kept) > 1:
        ids = segs.ids if segs.ids is not None else segs.ptr.diff().nonzero().squeeze(1)
        total = total if segs.ids is not None else total.index_select(0, ids)
        made = make(Pattern._from_keys(ids, size), total)
        order = [*kept, *outer]
        return made.permute([order.index(c) for c in output])
    if segs.ids is not None:
        total = put(segs.total, segs.ids, total)
    total = (
        total.reshape(*size, *(sizes[c] for c in outer)) if kept else total.reshape([sizes[c] for c in outer])
    )
    order = [*kept, *outer]
    return total.permute([order.index(c) for c in output]) if math.prod(total.shape) or order else total
