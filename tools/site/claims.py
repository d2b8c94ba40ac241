"""docs/claims.md: what is said about in-place operations and sparse gradients, each with a program and what it did here."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from common import DOCS, plainly, watched


class Claim(NamedTuple):
    said: str
    verdict: str
    program: str
    why: str


LEAF = "x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)\n"
GRAD = "print(x.grad.tolist())"
SPARSE = "i = torch.tensor([[0, 1], [1, 0]])\nv = torch.ones(2, requires_grad=True)\n"

CLAIMS = (
    Claim("`y = x + 2; y.add_(1)` fails, since autograd needs the old `y`", "no",
          LEAF + "y = x + 2\ny.add_(1)\ny.sum().backward()\n" + GRAD, "Neither `add` nor `sum` keeps `y`."),
    Claim("`y += 2` on a clone fails; the fix is `y = y + 2`", "no",
          LEAF + "y = x.clone()\ny += 2\n(y * 3).sum().backward()\n" + GRAD, "`* 3` keeps only the number."),
    Claim("`y[1:] *= 2` fails because a slice is a view", "no",
          LEAF + "y = x.clone()\ny[1:] *= 2\n(y * 3).sum().backward()\n" + GRAD, "A view of a clone may be written."),
    Claim("Writing through a view of a view fails; the view must be cloned", "no",
          LEAF + "y = x.clone()\ny.view(1, 3)[0][1] += 2\n(y * 3).sum().backward()\n" + GRAD, "Cloning and copying back is needless."),
    Claim("`data[mask] = 0` before a Linear fails if `data` is used anywhere that needs grad", "rarely",
          "lin = torch.nn.Linear(3, 1)\ndata = torch.ones(2, 3)\ndata[data > 0] = 0\nlin(data).sum().backward()\nprint(lin.weight.grad.tolist())",
          "Only if an op kept the old `data`."),
    Claim("`x[0] = 5.` on a leaf gives a gradient that is missing at index 0", "no",
          LEAF + "x[0] = 5.0\nx.sum().backward()\n" + GRAD, "It raises at once: a view of a leaf that requires grad."),
    Claim("`c = x.clone(); c[0] = 5.; (c + 2 * x).sum()` has the gradient `[3, 2, 2]`", "no",
          LEAF + "c = x.clone()\nc[0] = 5.0\n(c + 2 * x).sum().backward()\n" + GRAD,
          "The overwritten entry no longer depends on `x`, the others do."),
    Claim("Every in-place op must be replaced, always", "no",
          LEAF + "y = x * 2\ny.mul_(3)\ny.add_(1)\n(y + x).sum().backward()\n" + GRAD,
          "It depends on [what each op keeps](what-ops-keep.md)."),
    Claim("Cloning first makes in-place ops unsafe all the same", "no",
          LEAF + "h = x.exp()\ny = h.clone()\ny.add_(1)\n(h + y).sum().backward()\n" + GRAD,
          "Cloning first is what makes them safe for the original."),
    Claim("Not every in-place op raises, so errors seem random", "yes",
          LEAF + "y = x.exp()\ny.add_(1)\ny.sum().backward()\n" + GRAD,
          "`exp` keeps its result, `add` keeps nothing: `gradmend saves OP` answers it."),
    Claim("A function that modifies its argument breaks the caller", "if",
          LEAF + "def bump(t):\n    t.add_(1)\n\nh = x.sigmoid()\nbump(h)\nh.sum().backward()\n" + GRAD,
          "If the argument is a leaf, or an earlier op kept it."),
    Claim("Layer norm with an in-place mean subtraction breaks backward", "sometimes",
          LEAF + "h = x * 1\nh -= h.mean()\n(h / h.std()).sum().backward()\n" + GRAD,
          "In this order it runs; with `std` first, or `h /= ...` in place, it raises."),
    Claim("`sparse.values()[1] += 1` raises because sparse tensors can't be changed in place", "no",
          SPARSE + "s = torch.sparse_coo_tensor(i, v, (2, 2))\ns.values()[1] += 1", "It raises because the tensor is uncoalesced."),
    Claim("`torch.sum(sparse, dim=0)` may change its input in place", "no",
          SPARSE + "s = torch.sparse_coo_tensor(i, v, (2, 2)).coalesce()\ntorch.sum(s, dim=0).to_dense().sum().backward()\nprint(v.grad)",
          "Forward is fine, backward is not implemented."),
    Claim("Indices of shape (batch, 2, nnz) build a batch of sparse tensors", "no",
          "torch.sparse_coo_tensor(torch.zeros(4, 2, 3, dtype=torch.long), torch.ones(4, 3))", "Indices are sparse_dim x nnz."),
    Claim("After `sparse.sum().backward()`, `sparse.grad` holds the gradient", "no",
          SPARSE + "s = torch.sparse_coo_tensor(i, v, (2, 2)).coalesce()\ntorch.sparse.sum(s).backward()\nprint(s.grad, v.grad.tolist())",
          "It is None for a non-leaf: the gradient is in `values.grad`, a dense vector."),
    Claim("One can't edit or clip the gradient of sparse values", "no",
          SPARSE + "s = torch.sparse_coo_tensor(i, v, (2, 2)).coalesce()\ntorch.sparse.sum(s * 9).backward()\n"
          "torch.nn.utils.clip_grad_norm_([v], 1.0)\nprint(v.grad.tolist())", "`values.grad` is an ordinary tensor."),
    Claim("Only the stored values get gradients and updates, the zeros stay zero", "yes",
          SPARSE + "o = torch.optim.Adam([v])\ns = torch.sparse_coo_tensor(i, v, (2, 2)).coalesce()\ntorch.sparse.mm(s, torch.eye(2)).sum().backward()\n"
          "o.step()\nprint(torch.sparse_coo_tensor(i, v, (2, 2)).to_dense().tolist())", "With values as the parameter, and every optimizer works."),
    Claim("A SparseLinear layer is `torch.sparse.mm(weight, x)`, rebuilt from values in each forward", "yes",
          SPARSE + "s = torch.sparse_coo_tensor(i, v, (2, 2)).coalesce()\ntorch.sparse.mm(s, torch.ones(2, 1)).sum().backward()\nprint(v.grad.tolist())",
          "But its backward builds the dense matrix: see [sparse training](sparse.md)."),
    Claim("\"Backward a second time\" and in-place errors are one thing", "no",
          LEAF + "loss = (x * x).sum()\nloss.backward()\nloss.backward()", "Freed buffers are another cause, with another fix."),
    Claim("`.data`, `detach().add_` or `no_grad` are safe ways to write in place", "no",
          LEAF + "h = x.exp()\nh.data.add_(1)\nh.sum().backward()\n" + GRAD,
          "`.data` is silently wrong (right is `exp(x)`); the others raise when the value was kept."),
)  # fmt: skip


def main() -> None:
    version = torch.__version__.split("+")[0]
    lines = ["# What is said about in-place operations, and what is true", ""]
    lines += [
        f"Claims from popular answers. Each program was run with torch {version} when this page was made (`make pages`)."
    ]
    lines += ["", "| | claim | true? |", "|---|---|---|"]
    lines += [f"| [{n}](#{n}) | {c.said} | {c.verdict} |" for n, c in enumerate(CLAIMS, 1)]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for number, claim in enumerate(CLAIMS, 1):
            (home / "program.py").write_text(f"import torch\n\n{claim.program}\n")
            with contextlib.chdir(home):
                (printed, failed), story = plainly("program.py"), watched("program.py")
            said = failed or printed or "runs"
            lines += [
                "",
                f"## {number}. {claim.said} {{: #{number} }}",
                "",
                f"**{claim.verdict.capitalize()}.** {claim.why}",
                "",
            ]
            lines += ["```python", claim.program, "```", "", "```text", f"PyTorch:  {said}"]
            lines += [f"Gradmend: {_verdict(story, failed)}", "```"]
            print(number, claim.verdict, said[:80], flush=True)
    (DOCS / "claims.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _verdict(story: str, failed: str) -> str:
    return story.splitlines()[0] if story else "stops as PyTorch does" if failed else "nothing to say"


if __name__ == "__main__":
    main()
