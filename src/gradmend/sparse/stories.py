"""PyTorch's errors about sparse tensors, told again: what happened, and what to write instead.

A pure function from an error's type and message to a story; nothing here imports torch.

>>> recognise("RuntimeError", "expand is unsupported for Sparse tensors").rule
'GM306'
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SparseStory:
    """One cause. `sure` is False where the message alone doesn't prove that a sparse tensor was involved."""

    rule: str
    title: str
    happened: str
    write: str
    sure: bool = True


@dataclass(frozen=True, slots=True)
class _Cause:
    """A story whose texts are filled with the groups of the first pattern that matches."""

    story: SparseStory
    patterns: tuple[str, ...]
    types: tuple[str, ...] = ("RuntimeError", "NotImplementedError")

    def tell(self, kind: str, message: str) -> SparseStory | None:
        if kind not in self.types:
            return None
        for pattern in self.patterns:
            if found := re.search(pattern, message, re.DOTALL):
                values = {k: v or "" for k, v in found.groupdict().items()}
                s = self.story
                return SparseStory(
                    s.rule,
                    s.title.format(**values),
                    s.happened.format(**values),
                    s.write.format(**values),
                    s.sure,
                )
        return None


def recognise(exc_type_name: str, message: str) -> SparseStory | None:
    """The story of this error, or None when it is not one of the sparse family."""
    for cause in CAUSES:
        if (story := cause.tell(exc_type_name, message)) is not None:
            return story
    return None


def rules() -> tuple[str, ...]:
    return tuple(sorted({c.story.rule for c in CAUSES}))


CAUSES: tuple[_Cause, ...] = (
    _Cause(
        SparseStory(
            "GM301",
            "{part}() of an uncoalesced sparse tensor",
            "A COO tensor may store a place more than once, and is uncoalesced until those entries are summed. "
            "Until then PyTorch hands out neither values() nor indices(). Sparse tensors can be read and changed; "
            "it is only this one's duplicates that are in the way.",
            "Write `A = A.coalesce()` and use A.{part}(), or keep the tensor of values that A was built from and use "
            "that: gradients go to it, duplicates included. gradmend.sparse.SparseTensor is always coalesced.",
        ),
        (r"Cannot get (?P<part>values|indices) on an uncoalesced tensor",),
    ),
    _Cause(
        SparseStory(
            "GM302",
            "A write into the values() of a sparse tensor",
            "values() is a view that autograd follows into the sparse tensor. The write itself went through; its "
            "backward has to write into a gradient that is one number expanded to every place, and can't.",
            "Change the values before the tensor is built, out of place: "
            "`v = v + step; A = torch.sparse_coo_tensor(indices, v, size)`. With gradmend.sparse.SparseTensor: "
            "`S = S.map(lambda v: v + step)`.",
            sure=False,
        ),
        (
            r"more than one element of the written-to tensor refers to a single memory location",
            r"Could not run 'aten::new_empty_strided' with arguments from the 'Sparse\w*' backend",
        ),
    ),
    _Cause(
        SparseStory(
            "GM303",
            "The .grad of a tensor that is no leaf",
            "A sparse tensor built from values that require grad is a result, not a leaf: backward() passes through "
            "it and leaves its .grad None. The gradient is in the .grad of the values, an ordinary dense vector with "
            "one number per stored entry.",
            "Read `values.grad`, not `A.grad`: it can be clipped, edited and stepped by every optimizer. To see the "
            "gradient of A itself, call A.retain_grad() before backward().",
            sure=False,
        ),
        (r"\.grad attribute of a Tensor that is not a leaf Tensor is being accessed",),
        ("UserWarning",),
    ),
    _Cause(
        SparseStory(
            "GM304",
            "Indices whose shape is {shape}, not (dimensions, entries)",
            "The indices of a COO tensor are one matrix: a row per sparse dimension, a column per entry. A third "
            "dimension is not a batch.",
            "For a batch on one pattern write `SparseTensor(Pattern(indices, size), values, batch_dims=1)` with values "
            "(batch, entries); for a batch of different patterns add a row to the indices that numbers the items: "
            "(3, entries) and size (batch, rows, columns).",
        ),
        (r"indices must be sparse_dim x nnz, but got: \[(?P<shape>[\d, ]+)\]",),
    ),
    _Cause(
        SparseStory(
            "GM304",
            "Indices with {rows} rows for a size of {length} dimensions",
            "The first dimension of the indices must be the number of sparse dimensions: PyTorch counted {rows} rows "
            "of indices and {dense} dense dimensions, and the size has {length}. Indices of shape (batch, 2, entries) or "
            "(entries, 2) are read this way too.",
            "Give the indices as (2, entries) for a matrix: write `indices.t()` if they are pairs. For a batch on "
            "one pattern write `SparseTensor(Pattern(indices, size), values, batch_dims=1)`.",
        ),
        (
            r"'len\(size\) == sparse_dim \+ dense_dim' is not satisfied: len\(size\) = (?P<length>\d+), "
            r"sparse_dim = (?P<rows>\d+), dense_dim = (?P<dense>\d+)",
            r"number of dimensions must be sparse_dim \((?P<rows>\d+)\) \+ dense_dim \((?P<dense>\d+)\), "
            r"but got (?P<length>\d+)",
        ),
    ),
    _Cause(
        SparseStory(
            "GM305",
            "{places} places, {values} values",
            "Each entry is a place and a value. The indices name {places} places, and there are {values} values.",
            "Make values.shape[0] equal to indices.shape[1]. If the last entries are padding, cut both to the same "
            "length.",
        ),
        (
            r"indices and values must have same nnz, but got nnz from indices: (?P<places>\d+), "
            r"nnz from values: (?P<values>\d+)",
        ),
    ),
    _Cause(
        SparseStory(
            "GM305",
            "The row pointers of a CSR tensor don't end at its number of entries",
            "crow_indices counts the entries up to each row, so that its last number is the number of entries in "
            "col_indices and values. Here it is another.",
            "Rebuild crow_indices as [0, cumulative sum of entries per row], or let SparseTensor.from_coo(indices, "
            "values, size) sort and count.",
        ),
        (r"`c(?:row|col)_indices\[\.\.\., -1\] == nnz` is not satisfied",),
    ),
    _Cause(
        SparseStory(
            "GM306",
            "The backward of sum(dim) on a sparse tensor",
            "The sum itself was right, and changed nothing in place. Its backward spreads one gradient over a "
            "dimension, which PyTorch does with expand, and expand has no sparse version.",
            "Run under `with gradmend.sparse.patch():`, or sum with `SparseTensor.from_torch(A).sum(dim)`. By hand: "
            "`torch.zeros(rows).index_add(0, indices[0], values)` for the sum over columns.",
        ),
        (r"expand is unsupported for Sparse(?:Csr)? tensors",),
    ),
    _Cause(
        SparseStory(
            "GM307",
            "A backward that asked for the dense matrix: {size} bytes",
            "When a sparse matrix is built from values that require grad, PyTorch's backward of `A @ X` first makes "
            "the gradient of every entry, stored or not: rows x columns numbers.",
            "Run under `with gradmend.sparse.patch():`, or use gradmend.sparse.SparseTensor: both compute the gradient "
            "of the stored entries only.",
            sure=False,
        ),
        (r"DefaultCPUAllocator: can't allocate memory: you tried to allocate (?P<size>\d+) bytes",),
    ),
    _Cause(
        SparseStory(
            "GM308",
            "{optimizer} and a sparse gradient",
            "The parameter's gradient is a COO tensor (of a sparse leaf, or of an Embedding with sparse=True), and "
            "{optimizer} has no rule for it.",
            "Make the values the parameter: `nn.Parameter(values)` with the pattern beside it (SparseTensor) has "
            "dense gradients, and every optimizer takes them. For an Embedding drop sparse=True, or use SparseAdam, SGD "
            "or Adagrad for its weight alone.",
        ),
        (r"(?P<optimizer>`?\w+`?) does not support sparse gradients",),
    ),
    _Cause(
        SparseStory(
            "GM308",
            "Weight decay and a sparse gradient",
            "Weight decay changes every element at each step, and the sparse gradient names only a few.",
            "Set weight_decay=0 for this parameter with a parameter group of its own, or make the values an "
            "nn.Parameter (SparseTensor), whose gradient is dense over the stored entries.",
        ),
        (r"weight_decay option is not compatible with sparse gradients",),
    ),
    _Cause(
        SparseStory(
            "GM309",
            "SparseAdam and a dense gradient",
            "SparseAdam takes parameters with COO gradients only, and one of its parameters has a dense one.",
            "Give the dense parameters to another optimizer: SparseAdam for `[embedding.weight]`, Adam for the others.",
        ),
        (r"SparseAdam does not support dense gradients",),
    ),
    _Cause(
        SparseStory(
            "GM310",
            "The backward of {op} has no {layout} version",
            "The forward operation exists for this layout; its derivative calls {op}_backward, which does not.",
            "Apply the function to the values (`SparseTensor.from_torch(A).{op}()` does), or run under "
            "`with gradmend.sparse.patch():`.",
        ),
        (
            r"Could not run 'aten::(?P<op>\w+?)_backward(?:\.\w+)?' with arguments from the "
            r"'(?P<layout>Sparse\w*?)(?:CPU|CUDA|MPS|Meta)' backend",
        ),
    ),
    _Cause(
        SparseStory(
            "GM310",
            "{op} has no {layout} version",
            "PyTorch implements {op} for dense tensors, and not for this sparse layout. The call may come from "
            "another operation, or from the backward of one.",
            "Use gradmend.sparse.SparseTensor (`SparseTensor.from_torch(A)`), which answers the operations people use, "
            "or apply the function to `A.coalesce().values()`; `A.to_dense()` if the matrix is small.",
        ),
        (
            r"Could not run 'aten::(?P<op>\w+)(?:\.\w+)?' with arguments from the "
            r"'(?P<layout>Sparse\w*?)(?:CPU|CUDA|MPS|Meta)' backend",
            r"(?P<op>reshape) is not implemented for (?P<layout>sparse) tensors",
            r"(?P<layout>Sparse \w+) tensors do not have (?P<op>strides|is_contiguous)",
            r"Cannot access (?P<op>storage) of (?P<layout>Sparse\w*)TensorImpl",
            r"(?P<op>unsupported tensor layout): (?P<layout>Sparse\w+)",
        ),
    ),
    _Cause(
        SparseStory(
            "GM311",
            "sparse + dense",
            "A sparse tensor plus a number or a dense tensor is dense in every entry, and PyTorch adds only the other "
            "way round. With SGD it is weight decay that adds the dense parameter to a sparse gradient.",
            "Write `dense + A` for the dense sum, or change the stored entries only: `SparseTensor.from_torch(A)"
            ".map(lambda v: v + 1)`. In SGD set weight_decay=0 for parameters with sparse gradients.",
        ),
        (r"add\(sparse, dense\) is not supported",),
    ),
    _Cause(
        SparseStory(
            "GM312",
            "A sparse tensor divided by a dense one",
            "PyTorch divides a sparse tensor by a number only; the divisor has the shape ({shape}).",
            "Write `SparseTensor.from_torch(A) / X`: it divides the stored entries by X at their places. By hand: "
            "`values / X[indices[0], indices[1]]`.",
        ),
        (
            r"Sparse division requires a scalar or zero-dim dense tensor divisor \(got shape \[(?P<shape>[\d, ]*)\]",
        ),
    ),
    _Cause(
        SparseStory(
            "GM313",
            "A reduction of a CSR tensor without keepdim",
            "PyTorch reduces CSR tensors with keepdim=True only, and can't differentiate that either.",
            "Write `SparseTensor.from_torch(A).sum(dim)`, or build the tensor as COO and run under "
            "`with gradmend.sparse.patch():`.",
        ),
        (r"reduction operations on CSR tensors with keepdim=False is unsupported",),
    ),
    _Cause(
        SparseStory(
            "GM314",
            "An assignment to an element of a sparse tensor",
            "The place may not be stored, and PyTorch adds no entries by assignment.",
            "Build the tensor with the new value: change the tensor of values out of place, or add a sparse tensor "
            "that holds the change.",
        ),
        (r"Cannot assign to a sparse tensor",),
        ("TypeError",),
    ),
    _Cause(
        SparseStory(
            "GM315",
            "A sparse tensor handed to numpy",
            "numpy knows dense arrays only.",
            "Hand over `A.coalesce().values()` and `.indices()`, or a scipy matrix: `SparseTensor.from_torch(A).to_scipy()`. "
            "`A.to_dense().numpy()` if the matrix is small.",
        ),
        (r"can't convert Sparse\w* layout tensor to numpy",),
        ("TypeError",),
    ),
    _Cause(
        SparseStory(
            "GM316",
            "Sparse tensors in a DataLoader's batch",
            "default_collate stacks dense tensors; it refuses sparse ones.",
            "Return gradmend.sparse.SparseTensor from the dataset, or pass a collate_fn that stacks: "
            "`collate_fn=lambda items: torch.stack(items)`.",
        ),
        (r"Batches of sparse tensors are not currently supported by the default collate_fn",),
    ),
    _Cause(
        SparseStory(
            "GM317",
            "A copy of a sparse parameter or gradient",
            "Copying asks for a memory format ({form}), and sparse tensors have none: deepcopy of a sparse nn.Parameter and "
            "retain_grad() of a CSR tensor end here.",
            "Keep the values as the nn.Parameter and the pattern beside it (SparseTensor): deepcopy, state_dict and "
            "checkpoints then work.",
            sure=False,
        ),
        (r"unsupported memory format option (?P<form>Preserve|Contiguous)",),
    ),
    _Cause(
        SparseStory(
            "GM318",
            "An index outside of the size",
            "In dimension {dim} the size is {size}, and an entry lies at {index}. PyTorch checks this only when asked "
            "(check_invariants=True); unchecked, it reads and writes memory that isn't the tensor's.",
            "Give a size that holds every index, or drop the size to have it inferred.",
        ),
        (
            r"size is inconsistent with indices: for dim (?P<dim>\d+), size is (?P<size>\d+) but found index (?P<index>\d+)",
        ),
    ),
    _Cause(
        SparseStory(
            "GM318",
            "A negative index",
            "Entry places count from 0; {index} was found in dimension {dim}.",
            "Add the size of the dimension to negative indices, as Python's indexing would.",
        ),
        (r"found negative index (?P<index>-\d+) for dim (?P<dim>\d+)",),
    ),
    _Cause(
        SparseStory(
            "GM319",
            "Forward-mode differentiation through a sparse tensor",
            "PyTorch has no forward-mode rule for the constructors of sparse tensors.",
            "Use gradmend.sparse.SparseTensor: torch.func.jvp, jacfwd and hessian pass through it.",
        ),
        (r"Trying to use forward AD with _?sparse_\w+ that does not support it",),
    ),
    _Cause(
        SparseStory(
            "GM320",
            "A sparse product in {dtype}",
            "PyTorch's CSR products exist for 32- and 64-bit numbers only, on the CPU.",
            "Use gradmend.sparse.SparseTensor, which multiplies in bfloat16 and float16 and sums in float32; or convert "
            "the values to float32.",
        ),
        (r"\"\w*sparse\w*\" not implemented for '(?P<dtype>BFloat16|Half)'",),
    ),
)
