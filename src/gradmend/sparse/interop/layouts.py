"""From and to torch's own sparse tensors: COO, CSR, CSC, BSR, BSC."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradmend.sparse.autograd.undefined import skips_undefined
from gradmend.sparse.errors import PatternError, SparseError
from gradmend.sparse.interop.compressed import from_blocks, from_csc, from_csr
from gradmend.sparse.interop.dense import from_dense
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.places import order_of, pointers
from gradmend.sparse.tensor import SparseTensor, make


def from_torch(A: Tensor) -> SparseTensor:
    """Any layout. Gradients go to A's values where torch lets them through, else it is an error."""
    if isinstance(A, SparseTensor):
        return A
    if A.layout == torch.strided:
        return from_dense(A)
    if A.layout == torch.sparse_coo:
        return _from_coo(A)
    values = _values(A)
    if A.layout in (torch.sparse_csr, torch.sparse_bsr):
        ptr, index = A.crow_indices(), A.col_indices()
    else:
        ptr, index = A.ccol_indices(), A.row_indices()
    if ptr.dim() > 1:
        return _batched(A, ptr, index, values)
    if A.layout == torch.sparse_csr:
        return from_csr(ptr, index, values, tuple(A.shape))
    if A.layout == torch.sparse_csc:
        return from_csc(ptr, index, values, tuple(A.shape))
    major = torch.repeat_interleave(torch.arange(ptr.shape[0] - 1, device=A.device), ptr.diff())
    places = (major, index) if A.layout == torch.sparse_bsr else (index, major)
    return from_blocks(torch.stack(places).long(), values, tuple(A.shape))


def _from_coo(A: Tensor) -> SparseTensor:
    if A.requires_grad:
        if (leaf := _leaf_behind(A)) is not None:
            return SparseTensor(Pattern(A._indices(), A.shape[: A.sparse_dim()]), leaf)
        cut, linear = _constructed(A.grad_fn)
        A = A.coalesce()
        values = _Once.apply(A.values(), linear) if cut else A.values()
        return SparseTensor(Pattern(A.indices(), A.shape[: A.sparse_dim()]), values)
    return SparseTensor(Pattern(A._indices(), A.shape[: A.sparse_dim()]), A._values())


def _leaf_behind(A: Tensor) -> Tensor | None:
    """The leaf that A was built from, if A lies in its memory and nobody waits for the gradient of A itself."""
    if A.grad_fn is None or A.retains_grad or A._backward_hooks:
        return None
    leaf = next((getattr(n, "variable", None) for n, _ in A.grad_fn.next_functions if n is not None), None)
    stored = A._values()
    if leaf is None or leaf.layout != torch.strided or leaf.data_ptr() != stored.data_ptr():
        return None
    return leaf if leaf.shape == stored.shape and leaf.dtype == stored.dtype else None


# Where a sparse tensor begins: what lies behind is dense, and its own matter.
_BEGINNINGS = ("ToSparse", "ToTorchBackward", "WrapBackward", "torch::autograd::AccumulateGrad")
_CONSTRUCTOR = "SparseCooTensorWithDims"
_LINEAR = ("Coalesce", "Clone", "ToCopy", "Neg", "Add", "Sub", "TBackward", "Transpose", "Permute")


def _constructed(node: Any) -> tuple[bool, bool]:
    """Whether torch.sparse_coo_tensor is behind A, and whether A is linear in what that was given.

    The backward of that constructor cuts second derivatives in silence (2.13), whatever was done to the tensor since.
    """
    found, linear = False, True
    seen: set[Any] = set()
    left = [node]
    while left:
        node = left.pop()
        if node is None or node in seen or node.name().startswith(_BEGINNINGS):
            continue
        if node.name().startswith(_CONSTRUCTOR):
            found = True
            continue
        seen.add(node)
        behind = [n for n, _ in node.next_functions if n is not None]
        by_constant = node.name().startswith(("Mul", "Div")) and len(behind) == 1
        linear = linear and (by_constant or node.name().startswith(_LINEAR))
        left += behind
    return found, linear


@skips_undefined
class _Once(torch.autograd.Function):
    """Values that have a first derivative, and no second."""

    @staticmethod
    def forward(values: Tensor, linear: bool) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.linear = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        # A gradient that depends on nothing has no second derivative, unless the way on to the constructor has one.
        if torch.is_grad_enabled() and (grads[0].requires_grad or not ctx.linear):
            raise SparseError(
                "create_graph=True reached the values of a torch sparse tensor: torch.sparse_coo_tensor would cut the "
                "second derivative there in silence. Give the values to SparseTensor.from_coo(indices, values, size)."
            )
        return grads[0], None


def _values(A: Tensor) -> Tensor:
    if not A.requires_grad:
        return A.values()
    # values() of a compressed layout is cut off from its graph; its constructor still holds the real ones.
    kept = getattr(A.grad_fn, "_saved_values", None)
    if kept is not None:
        return kept
    raise SparseError(
        "this compressed sparse tensor requires grad and its values can't be reached through torch: give the "
        "values themselves to SparseTensor.from_csr(crow, col, values, size)."
    )


def _batched(A: Tensor, ptr: Tensor, index: Tensor, values: Tensor) -> SparseTensor:
    """One pattern: a batch dimension. Several: the batch becomes a sparse dimension."""
    from gradmend.sparse.ops.structure.join import stack

    if A.layout not in (torch.sparse_csr, torch.sparse_csc) or ptr.dim() != 2:
        raise PatternError(f"a batch of {A.layout} can't be converted: use its items.")
    build = from_csr if A.layout == torch.sparse_csr else from_csc
    parts = [build(p, i, v, tuple(A.shape[1:3])) for p, i, v in zip(ptr, index, values, strict=True)]
    if all(p._pattern == parts[0]._pattern for p in parts):
        return make(parts[0]._pattern, torch.stack([p._values for p in parts]), 1)
    return stack(parts)


@skips_undefined
class ToTorch(torch.autograd.Function):
    """Hands the entries over to a torch layout; takes back a gradient of whatever layout torch returns."""

    @staticmethod
    def forward(values: Tensor, pattern: Pattern, layout: torch.layout, block: Any) -> Tensor:
        return build(values, pattern, layout, block)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.pattern, _, _ = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        from gradmend.sparse.helpers.gather import pick
        from gradmend.sparse.ops.structure.index import sparse_mask

        if (
            grad.layout not in (torch.strided, torch.sparse_coo)
            and torch.is_grad_enabled()
            and grad.requires_grad
        ):
            # A second derivative of torch's own compressed layout: torch lets it through as dense only.
            grad = grad.to_dense()
        if grad.layout == torch.strided:
            return pick(grad, ctx.pattern), None, None, None
        shape = (ctx.pattern.nnz, *grad.shape[ctx.pattern.ndim :])
        at = make(ctx.pattern, torch.zeros(shape, dtype=grad.dtype, device=grad.device))
        return sparse_mask(from_torch(grad), at)._values, None, None, None


def build(values: Tensor, pattern: Pattern, layout: torch.layout, block: Any = None) -> Tensor:
    size = (*pattern.size, *values.shape[1:])
    options: dict[str, Any] = {"size": size, "check_invariants": False}
    if layout == torch.sparse_coo:
        return torch.sparse_coo_tensor(pattern.indices(), values, is_coalesced=True, **options)
    if pattern.ndim != 2:
        raise SparseError(
            f"{layout} takes 2 sparse dimensions, and S has {pattern.ndim}: use to_sparse_coo()."
        )
    if layout == torch.sparse_csr:
        # Made for the caller, who may write to them: what the pattern keeps is never handed out.
        ptr = pointers(pattern._indices[0], pattern.size[0])
        return torch.sparse_csr_tensor(ptr, pattern._col.clone(), values, **options)
    row, col = pattern._indices
    perm = order_of(col * pattern.size[0] + row)
    csc = torch.sparse_csc_tensor(pointers(col[perm], pattern.size[1]), row[perm], values[perm], **options)
    if layout == torch.sparse_csc:
        return csc
    coo = torch.sparse_coo_tensor(pattern.indices(), values, is_coalesced=True, **options)
    return coo.to_sparse(layout=layout, blocksize=block)


def to_layout(S: SparseTensor, layout: torch.layout, block: tuple[int, int] | None = None) -> Tensor:
    """A torch sparse tensor whose gradients come back to S's values, never through the dense matrix."""
    if S.batch_dims:
        raise SparseError("batch dimensions have no counterpart in torch's layouts: use S.unbatch() first.")
    return ToTorch.apply(S._values, S._pattern, layout, block)
