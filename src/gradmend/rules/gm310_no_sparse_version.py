from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM310",
    name="no-sparse-version",
    summary="The operation, or its backward, has no version for this sparse layout.",
    what="""
Finds calls that PyTorch does not implement for COO, CSR, CSC or BSR tensors.
""",
    told=(
        Told(
            title="The backward of {op} has no {layout} version",
            happened=(
                "The forward operation exists for this layout; its derivative calls {op}_backward, which does "
                "not."
            ),
            write=(
                "Apply the function to the values (`SparseTensor.from_torch(A).{op}()` does), or run under `with "
                "gradmend.sparse.patch(masked=True):`."
            ),
            says=(
                r"Could not run 'aten::(?P<op>\w+?)_backward(?:\.\w+)?' with arguments from the '(?P<layout>Sparse\w*?)(?:CPU|CUDA|MPS|Meta)' backend",
            ),
        ),
        Told(
            title="{op} has no {layout} version",
            happened=(
                "PyTorch implements {op} for dense tensors, and not for this sparse layout. The call may come "
                "from another operation, or from the backward of one."
            ),
            write=(
                "Use gradmend.sparse.SparseTensor (`SparseTensor.from_torch(A)`), which answers the operations "
                "people use, or apply the function to `A.coalesce().values()`; `A.to_dense()` if the matrix is "
                "small."
            ),
            says=(
                r"Could not run 'aten::(?P<op>\w+)(?:\.\w+)?' with arguments from the '(?P<layout>Sparse\w*?)(?:CPU|CUDA|MPS|Meta)' backend",
                r"(?P<op>reshape) is not implemented for (?P<layout>sparse) tensors",
                r"(?P<layout>Sparse \w+) tensors do not have (?P<op>strides|is_contiguous)",
                r"Cannot access (?P<op>storage) of (?P<layout>Sparse\w*)TensorImpl",
                r"(?P<op>unsupported tensor layout): (?P<layout>Sparse\w+)",
            ),
        ),
    ),
    bad="""
import torch

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
A = torch.sparse_coo_tensor(indices, values, (2, 3))
A.tanh().sum().backward()
""",
    good="""
import torch

from gradmend.sparse import SparseTensor

indices = torch.tensor([[0, 1, 1], [2, 0, 2]])
values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
S = SparseTensor.from_coo(indices, values, (2, 3))
S.tanh().sum().backward()
""",
    gradient="values.grad",
    right="1 - torch.tanh(values) ** 2",
)
