from gradmend.rules._messages import Told, sparse_rule

RULE = sparse_rule(
    code="GM308",
    name="optimizer-refuses-sparse-gradient",
    summary="The optimizer has no rule for sparse gradients.",
    what="""
Finds optimizers that meet a COO gradient, of a sparse leaf or of an embedding with `sparse=True`, and weight decay
on one. `gradmend check` tells it of embeddings; a sparse leaf needs a run.
""",
    told=(
        Told(
            title="{optimizer} and a sparse gradient",
            happened=(
                "The parameter's gradient is a COO tensor (of a sparse leaf, or of an Embedding with "
                "sparse=True), and {optimizer} has no rule for it."
            ),
            write=(
                "Make the values the parameter: `nn.Parameter(values)` with the pattern beside it (SparseTensor) "
                "has dense gradients, and every optimizer takes them. For an Embedding drop sparse=True, or use "
                "SparseAdam, SGD or Adagrad for its weight alone, the last two without weight_decay; RowAdam and the "
                "others of gradmend.sparse.optim take both."
            ),
            says=(r"(?P<optimizer>`?\w+`?) does not support sparse gradients",),
        ),
        Told(
            title="Weight decay and a sparse gradient",
            happened="Weight decay changes every element at each step, and the sparse gradient names only a few.",
            write=(
                "Set weight_decay=0 for this parameter with a parameter group of its own, use an optimizer of "
                "gradmend.sparse.optim, or make the values an nn.Parameter (SparseTensor), whose gradient is dense over "
                "the stored entries."
            ),
            says=(r"weight_decay option is not compatible with sparse gradients",),
        ),
    ),
    bad="""
import torch

table = torch.nn.Embedding(5, 2, sparse=True)
optimizer = torch.optim.Adam(table.parameters())
table(torch.tensor([1, 2])).sum().backward()
optimizer.step()
""",
    good="""
import torch

table = torch.nn.Embedding(5, 2)
optimizer = torch.optim.Adam(table.parameters())
table(torch.tensor([1, 2])).sum().backward()
optimizer.step()
""",
    gradient="table.weight.grad[1:3]",
    right="torch.ones(2, 2)",
)
