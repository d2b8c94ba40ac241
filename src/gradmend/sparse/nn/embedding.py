"""Tables with row-sparse gradients: look-ups, and weighted sums of look-ups.

Both are torch's own modules by class, so that DistributedDataParallel knows that their gradients are sparse, and by the
names of their parameters, so that states go from one to the other.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradmend.sparse import kernels
from gradmend.sparse.autograd.undefined import skips_undefined
from gradmend.sparse.errors import OutsideError, SparseError
from gradmend.sparse.interop.layouts import ToTorch
from gradmend.sparse.kernels import checks
from gradmend.sparse.kernels.grouping import grouped
from gradmend.sparse.kernels.plain import conj, wide
from gradmend.sparse.kernels.rows import take
from gradmend.sparse.pattern import Pattern
from gradmend.sparse.tensor import SparseTensor


class SparseEmbedding(nn.Embedding):
    """nn.Embedding(sparse=True): the gradient names the rows that were looked up, and nothing else.

    An index outside of the table is an error that says which.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, **options: Any
    ) -> None:
        _only(options, "max_norm", "scale_grad_by_freq", "sparse")
        super().__init__(num_embeddings, embedding_dim, padding_idx, sparse=True, **options)

    def forward(self, input: Tensor) -> Tensor:
        _inside(input, self.weight.shape[0])
        if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
            return F.embedding(input, self.weight, self.padding_idx, sparse=True)
        rows: Tensor = Rows.apply(self.weight, input.reshape(-1), self.padding_idx)
        return rows.view(*input.shape, rows.shape[1])


class SparseEmbeddingBag(nn.EmbeddingBag):
    """nn.EmbeddingBag(sparse=True) with one gradient for each row named, made without one for each look-up.

    >>> bag = SparseEmbeddingBag(1000, 16)
    >>> bag(torch.tensor([[1, 2], [2, 3]])).shape
    torch.Size([2, 16])

    Takes ids [bags, n], ids with offsets, or, with mode="sum", a SparseTensor [bags, num_embeddings]: its values are the
    weights (a bag of words). `per_sample_weights` and values have gradients. Modes are torch's: "mean", "sum" and "max";
    with "max" the gradient is sparse too, which torch's own refuses.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        **options: Any,
    ) -> None:
        _only(options, "max_norm", "scale_grad_by_freq", "sparse")
        if mode not in ("sum", "mean", "max"):
            raise SparseError(f'SparseEmbeddingBag has the modes "mean", "sum" and "max", not {mode!r}.')
        super().__init__(
            num_embeddings,
            embedding_dim,
            mode=mode,
            sparse=True,
            include_last_offset=include_last_offset,
            padding_idx=padding_idx,
            **options,
        )

    def forward(
        self,
        input: Tensor | SparseTensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        if isinstance(input, SparseTensor):
            if offsets is not None or per_sample_weights is not None:
                raise SparseError("a SparseTensor has its own offsets and weights: pass it alone.")
            ids, ptr, weights = self._words(input)
        else:
            ids, ptr, weights = self._bags(input, offsets, per_sample_weights)
        if self.mode == "max" and weights is not None:
            raise SparseError('per_sample_weights are for mode="sum" and "mean", not for "max".')
        if weights is not None and weights.dtype != self.weight.dtype:
            raise SparseError(
                f"weights are {weights.dtype}, and the table is {self.weight.dtype}: convert one."
            )
        if torch.compiler.is_compiling():
            return self._compiled(ids, ptr, weights)
        if _raw(ids) is not ids:
            return self._of_batched_ids(ids, ptr, weights)
        ids, ptr, weights = self._without_padding(ids, ptr, weights)
        transformed = torch._C._are_functorch_transforms_active()
        if self.mode == "max":
            if transformed:
                return F.embedding_bag(ids, self.weight, ptr, mode="max", include_last_offset=True)
            largest: Tensor = _Largest.apply(self.weight, ids, ptr)[0]
            return largest
        if self.mode == "mean":
            count = ptr.diff().clamp_(min=1).to(self.weight.dtype)
            share = count.reciprocal().repeat_interleave(ptr.diff(), output_size=ids.shape[0])
            weights = share if weights is None else weights * share
        if weights is None:
            weights = torch.ones(ids.shape[0], dtype=self.weight.dtype, device=ids.device)
        if transformed:
            return F.embedding_bag(
                ids,
                self.weight,
                ptr,
                mode="sum",
                sparse=True,
                per_sample_weights=weights,
                include_last_offset=True,
            )
        made: Tensor = _Bags.apply(self.weight, weights, ids, ptr)
        return made

    def _of_batched_ids(self, ids: Tensor, ptr: Tensor, weights: Tensor | None) -> Tensor:
        """Under vmap each item has another number of paddings: torch's own op counts them."""
        if weights is not None and self.mode != "sum":
            raise SparseError(f'under vmap per_sample_weights are for mode="sum", not for "{self.mode}".')
        return F.embedding_bag(
            ids,
            self.weight,
            ptr,
            mode=self.mode,
            sparse=self.mode != "max",
            per_sample_weights=weights,
            include_last_offset=True,
            padding_idx=self.padding_idx,
        )

    def _compiled(self, ids: Tensor, ptr: Tensor, weights: Tensor | None) -> Tensor:
        """Of torch's ops, without a shape that hangs on numbers (but for weights with padding): one graph."""
        bags, pad = ptr.shape[0] - 1, self.padding_idx
        if weights is None:
            how = "max" if self.mode == "max" else "sum"
            out = F.embedding_bag(
                ids,
                self.weight,
                ptr,
                mode=how,
                sparse=how == "sum",
                include_last_offset=True,
                padding_idx=pad,
            )
        else:
            # Not embedding_bag's own weights: traced, their backward has no shape (2.13).
            ids, ptr, weights = self._without_padding(ids, ptr, weights)
            assert weights is not None
            rows = F.embedding(ids, self.weight, sparse=True) * weights[:, None]
            bag = torch.searchsorted(
                ptr[1:].contiguous(), torch.arange(ids.shape[0], device=ids.device), right=True
            )
            out = rows.new_zeros(bags + 1, rows.shape[1]).index_add(0, bag, rows)[:bags]
        if self.mode != "mean":
            return out
        count = ptr.diff() if pad is None or weights is not None else _before(ids != pad)[ptr].diff()
        return out / count.clamp(min=1).to(out.dtype)[:, None]

    def _words(self, S: SparseTensor) -> tuple[Tensor, Tensor, Tensor | None]:
        if (
            S._pattern.ndim != 2
            or S.batch_dims
            or S.dense_dim()
            or S._pattern.size[1] != self.weight.shape[0]
        ):
            raise SparseError(
                f"a bag of words is a sparse matrix of (bags, {self.weight.shape[0]}), not {tuple(S.shape)}."
            )
        if self.mode != "sum":
            raise SparseError(
                f'a SparseTensor has weights of its own, and this bag has mode="{self.mode}": '
                'use mode="sum" (divide the values by their sum for a mean).'
            )
        return S._pattern._col, S._pattern._ptr, S._values

    def _bags(
        self, ids: Tensor, offsets: Tensor | None, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        _inside(ids, self.weight.shape[0])
        if weights is not None:
            if weights.shape != ids.shape:
                raise SparseError(
                    f"there are weights of {tuple(weights.shape)} for ids of {tuple(ids.shape)}."
                )
            weights = weights.reshape(-1)
        flat = ids.reshape(-1).to(torch.int64)
        if ids.dim() == 2:
            if offsets is not None:
                raise SparseError("ids of (bags, n) need no offsets.")
            return flat, torch.arange(ids.shape[0] + 1, device=ids.device) * ids.shape[1], weights
        if ids.dim() != 1 or offsets is None:
            raise SparseError(f"ids are (bags, n), or one vector with offsets; not {tuple(ids.shape)}.")
        ptr = offsets.to(torch.int64)
        if not self.include_last_offset:
            ptr = torch.cat([ptr, ptr.new_tensor([flat.shape[0]])])
        # Only then does torch leave them out: else it adds them to the last bag, or counts them there (2.13).
        tail = self.mode == "sum" and self.padding_idx is None
        if torch.compiler.is_compiling() or not checks.looked_at(ptr):
            if self.include_last_offset and (not tail or not torch.compiler.is_compiling()):
                torch._assert_async(ptr[-1] == flat.shape[0], "the last offset is not the number of ids")
            return flat, ptr, weights
        last = _checked(ptr, flat.shape[0])
        if last < flat.shape[0] and not tail:
            raise SparseError(
                f'the last offset is {last}, and there are {flat.shape[0]} ids. Ids in no bag are for mode="sum" '
                f"without padding_idx: pass ids[:{last}]."
            )
        return flat[:last], ptr, None if weights is None else weights[:last]

    def _without_padding(
        self, ids: Tensor, ptr: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.padding_idx is None:
            return ids, ptr, weights
        kept = ids != self.padding_idx
        return ids[kept], _before(kept)[ptr], None if weights is None else weights[kept]


@skips_undefined
class _Bags(torch.autograd.Function):
    """Sums of weighted rows; the table's gradient is one row for each row named."""

    @staticmethod
    def forward(table: Tensor, weights: Tensor, ids: Tensor, ptr: Tensor) -> Tensor:
        return kernels.spmm(ptr, ids, weights, table, None, (ptr.shape[0] - 1, table.shape[0]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,), (table, weights, ids, ptr) = grads, ctx.saved_tensors
        d_table = d_weights = None
        bags, bag = ptr.shape[0] - 1, kernels.rows_of(ptr, ids.shape[0])
        again = torch.is_grad_enabled()  # kernels have no graph for a second derivative, torch's own ops do
        if ctx.needs_input_grad[0] and not again and not ids.is_cpu:
            # A row for each id: how many different ones there are, the host would have to wait for.
            d_table = _of_ids(ids, conj(weights)[:, None] * grad.index_select(0, bag), table)
        elif ctx.needs_input_grad[0]:
            groups = grouped(ids, table.shape[0], known=True)
            if again:
                terms = (weights.conj()[:, None] * grad[bag]).to(wide(grad.dtype))
                rows = terms.new_zeros(groups.rows.shape[0], grad.shape[1]).index_add(0, groups.each, terms)
                rows = rows.to(grad.dtype)
            else:
                bag, size = bag.index_select(0, groups.order), (groups.rows.shape[0], bags)
                rows = kernels.spmm(groups.crow, bag, conj(weights), grad, groups.order, size)
            d_table = _by_rows(groups.rows, rows, table)
        if ctx.needs_input_grad[1]:
            if again:
                each = torch.arange(ids.shape[0] + 1, device=ids.device)
                looked = _Bags.apply(table, torch.ones_like(weights), ids, each).conj()
                d_weights = (grad[bag] * looked).to(wide(grad.dtype)).sum(1).to(grad.dtype)
            else:
                d_weights = kernels.sddmm(ptr, ids, grad, conj(table), size=(bags, table.shape[0]))
        return d_table, d_weights, None, None


@skips_undefined
class _Largest(torch.autograd.Function):
    """The largest of each feature in a bag; the table's gradient is one row for each row that has some feature's largest."""

    @staticmethod
    def forward(table: Tensor, ids: Tensor, ptr: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out, _, count, rows = torch.embedding_bag(table, ids, ptr, False, 2, False, None, True)
        return out, rows, count

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, rows, count = output
        ctx.mark_non_differentiable(rows, count)
        ctx.save_for_backward(inputs[0], rows, count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        table, rows, count = ctx.saved_tensors
        full = count > 0  # torch names row 0 for an empty bag
        rows, grad = rows[full], grads[0][full]
        named, place = rows.unique(return_inverse=True)
        summed = grad.new_zeros(named.shape[0], table.shape[1]).scatter_add_(0, place, grad)
        return _by_rows(named, summed, table), None, None


@skips_undefined
class Rows(torch.autograd.Function):
    """table[ids] with a row-sparse gradient. torch's own embedding has no third derivative, and no second of no ids (2.13)."""

    @staticmethod
    def forward(table: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        return take(table, ids)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        table, ids, ctx.padding = inputs
        ctx.save_for_backward(table, ids)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,), (table, ids) = grads, ctx.saved_tensors
        ids = ids.to(torch.int64)
        if ctx.padding is not None:
            kept = ids != ctx.padding
            ids, grad = ids[kept], grad[kept]
        if not torch.is_grad_enabled():
            return _of_ids(ids, grad, table), None, None
        groups = grouped(ids, table.shape[0], known=True)
        summed = grad.new_zeros(groups.rows.shape[0], grad.shape[1]).index_add(0, groups.each, grad)
        return _by_rows(groups.rows, summed, table), None, None


def _of_ids(ids: Tensor, values: Tensor, table: Tensor) -> Tensor:
    """The gradient of a table, rows as often as they were looked up."""
    return torch.sparse_coo_tensor(ids[None], values, table.shape, check_invariants=False)


def _by_rows(rows: Tensor, values: Tensor, table: Tensor) -> Tensor:
    """The gradient of a table, of different rows that ascend. torch's constructor has no second derivative (2.13)."""
    if torch.is_grad_enabled() and values.requires_grad:
        made: Tensor = ToTorch.apply(
            values, Pattern.sorted(rows[None], table.shape[:1]), torch.sparse_coo, None
        )
        return made
    return torch.sparse_coo_tensor(rows[None], values, table.shape, is_coalesced=True, check_invariants=False)


def _checked(ptr: Tensor, ids: int) -> int:
    """Where the last bag ends."""
    if ptr.dim() != 1 or ptr.shape[0] == 0:
        raise SparseError(f"offsets are one vector, not {tuple(ptr.shape)}.")
    first, last = int(ptr[0]), int(ptr[-1])
    if first != 0 or last > ids or bool((ptr.diff() < 0).any()):
        raise SparseError(
            f"offsets begin with 0, never fall, and none is beyond the {ids} ids; these go from {first} to {last}."
        )
    return last


def bags_of(ids: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ids in one vector, and where each bag begins, with the end of the last. Ids after the last bag are left out."""
    flat = ids.reshape(-1).to(torch.int64)
    if ids.dim() == 2 and offsets is None:
        return flat, torch.arange(ids.shape[0] + 1, device=ids.device) * ids.shape[1]
    if ids.dim() != 1 or offsets is None:
        raise SparseError(f"ids are (bags, n), or one vector with offsets; not {tuple(ids.shape)}.")
    ptr = torch.cat([offsets.to(torch.int64), offsets.new_tensor([flat.shape[0]], dtype=torch.int64)])
    _checked(ptr, flat.shape[0])
    return flat, ptr


def _before(kept: Tensor) -> Tensor:
    """[n + 1]: how many are kept before each place."""
    return F.pad(kept.cumsum(0), (1, 0))


def _only(options: dict[str, Any], *names: str) -> None:
    for name in names:
        if options.get(name):
            raise SparseError(
                f"a sparse table has no {name}: its gradients are sparse already, and rows stay as trained."
            )
        options.pop(name, None)


def _inside(ids: Tensor, bound: int) -> None:
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise SparseError(f"ids are whole numbers, not {ids.dtype}.")
    if ids.numel() and not ids.is_meta and not torch.compiler.is_compiling() and checks.looked_at(ids):
        low, high = (int(n) for n in _raw(ids).aminmax())
        if low < 0 or high >= bound:
            raise OutsideError(f"ids go from {low} to {high}, and the table has the rows 0 to {bound - 1}.")


def _raw(ids: Tensor) -> Tensor:
    """What lies in memory: vmap lets nobody ask a batched tensor for a number."""
    while torch._C._functorch.is_functorch_wrapped_tensor(ids):
        ids = torch._C._functorch.get_unwrapped(ids)
    return ids
