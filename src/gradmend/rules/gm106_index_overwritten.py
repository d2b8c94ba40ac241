from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM106",
    name="index-or-mask-overwritten",
    summary="A tensor of indices, labels or a mask was overwritten after an op had used it.",
    what="""
Finds a write to the index of indexing, gather, scatter, embedding or take, to the mask of where and
masked_fill, to the labels of a loss, to the indices that max, sort, topk and pools return: tensors that carry
no gradient themselves, reused as scratch memory.
""",
    why="""
Backward sends each gradient back to where the value came from, and the index is the only record of that.
With another index in its place the gradient would reach the wrong rows, or lie out of range.
""",
    bad="""
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
index = torch.tensor([0, 1])
y = x[index] ** 2
index.fill_(2)
y.sum().backward()
""",
    good="""
import torch

x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
index = torch.tensor([0, 1])
y = x[index] ** 2
index = torch.full_like(index, 2)
y.sum().backward()
""",
    fix="""
A new index tensor for each use is safe and small beside the data. Where the buffer is filled by other code
(a sampler, a data loader), clone it at the use: `x[index.clone()]`.
""",
    raises="modified by an inplace operation",
    right="torch.tensor([2.0, 4.0, 0.0])",
)
