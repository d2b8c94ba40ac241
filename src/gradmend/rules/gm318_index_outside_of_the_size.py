from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM318",
    name="index-outside-of-the-size",
    summary="An entry of a sparse tensor lies outside of its size.",
    what="""
Finds indices that are negative or beyond the size, where PyTorch was asked to check them.
""",
    told=(
        Told(
            title="An index outside of the size",
            happened=(
                "In dimension {dim} the size is {size}, and an entry lies at {index}. PyTorch checks this only "
                "when asked (check_invariants=True); unchecked, it reads and writes memory that isn't the "
                "tensor's."
            ),
            write="Give a size that holds every index, or drop the size to have it inferred.",
            says=(
                r"size is inconsistent with indices: for dim (?P<dim>\d+), size is (?P<size>\d+) but found index (?P<index>\d+)",
            ),
        ),
        Told(
            title="A negative index",
            happened="Entry places count from 0; {index} was found in dimension {dim}.",
            write="Add the size of the dimension to negative indices, as Python's indexing would.",
            says=(r"found negative index (?P<index>-\d+) for dim (?P<dim>\d+)",),
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 2), check_invariants=True)
""",
    good="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3), check_invariants=True)
A.sum().backward()
""",
    gradient="values.grad",
    right="torch.ones(3)",
)
