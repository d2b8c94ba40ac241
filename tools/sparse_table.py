"""Runs the 106 operations on torch's layouts and on ours, and writes the table of what trains to docs/.

    python tools/sparse_table.py            writes docs/sparse-operations.md
    python tools/sparse_table.py --check    exits 1 if the committed table differs from what was just run

Each cell is a real run against the dense operation: the forward value, then the gradient of the values.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "sparse"))

import torch  # noqa: E402
from sparse_catalog import OPS, Op, build_dense, dense_of, numbers, places, world  # noqa: E402
from torch import Tensor  # noqa: E402

from gradmend.errors import GradmendError  # noqa: E402
from gradmend.sparse import DenseResultError, Pattern, SparseTensor  # noqa: E402

OUT = ROOT / "docs" / "sparse-operations.md"
LAYOUTS = ("COO", "CSR", "CSC", "BSR", "Gradmend")
A, B = places()


def build(layout: str, mask: Tensor, values: Tensor) -> object:
    """A sparse tensor of that layout whose values are the given leaf."""
    index = mask.nonzero().t().contiguous()
    size = tuple(mask.shape)
    if layout == "Gradmend":
        return SparseTensor(Pattern(index, size), values)
    if layout == "COO":
        return torch.sparse_coo_tensor(index, values, size).coalesce()
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)])
    if layout == "CSR":
        return torch.sparse_csr_tensor(crow, index[1], values, size)
    if layout == "CSC":
        turned = mask.t()
        order = torch.argsort(index[1] * mask.shape[0] + index[0])
        ccol = torch.cat([torch.zeros(1, dtype=torch.int64), turned.sum(1).cumsum(0)])
        return torch.sparse_csc_tensor(ccol, turned.nonzero()[:, 1], values[order], size)
    return torch.sparse_bsr_tensor(crow, index[1], values.view(-1, 1, 1), size)


def verdict(op: Op, layout: str) -> str:
    """ok: trains. B: only the forward is right. F: it raises, or is wrong. dense: refused in one sentence."""
    n = numbers(A, B)
    for name in ("a", "b"):
        n[name].requires_grad_()
    try:
        want = dense_of(op.oracle(world(build_dense, A, B, n)))
        got = dense_of(op.run(world(lambda mask, v: build(layout, mask, v), A, B, n)))
    except DenseResultError:
        return "dense"
    except Exception:
        return "F"
    if got.shape != want.shape or not torch.allclose(got.to(want.dtype), want, atol=1e-5):
        if op.name == "values()" and got.numel() == want.numel():
            pass  # torch's own order of the values
        else:
            return "F (wrong)"
    if not op.grad or not want.requires_grad:
        return "ok"
    weight = torch.arange(1.0, want.numel() + 1, dtype=want.dtype).view(want.shape)
    theirs = torch.autograd.grad((want * weight).sum(), [n["a"], n["b"]], allow_unused=True)
    try:
        if op.name == "values()":
            weight = weight.view(got.shape)
        ours = torch.autograd.grad((got * weight).sum(), [n["a"], n["b"]], allow_unused=True)
    except Exception:
        return "B"
    for g, h in zip(ours, theirs, strict=True):
        if h is None or not h.any():
            continue
        if g is None:
            return "B"
        if g.layout != torch.strided:
            g = g.to_dense()
        if op.name == "values()" and layout in ("CSC", "BSR"):
            continue
        if not torch.allclose(g, h, atol=1e-4):
            return "B (wrong)"
    return "ok"


def wrong_shapes(op: Op) -> tuple[int, str]:
    """Each dense operand a row, a column or a dimension too long: refused wherever dense refuses, else equal to it."""
    tried = 0
    for name in ("X", "Y", "C", "F", "W", "x", "col", "row"):
        shape = numbers(A, B)[name].shape
        grown = [tuple(m + (i == d) for i, m in enumerate(shape)) for d in range(len(shape))]
        for wrong in (*grown, (2, *shape), shape[1:]):
            n = numbers(A, B)
            n[name] = torch.ones(wrong, dtype=torch.float64)
            try:
                want = dense_of(op.oracle(world(build_dense, A, B, n)))
            except Exception:
                want = None
            try:
                got = dense_of(op.run(world(lambda mask, v: build("Gradmend", mask, v), A, B, n)))
            except (GradmendError, IndexError):
                tried += want is None
                continue
            tried += want is None
            if (
                want is None
                or got.shape != want.shape
                or not torch.allclose(got.to(want.dtype), want, atol=1e-5)
            ):
                return tried, f"F (takes {name} of the shape {wrong})"
    return tried, "ok"


def table() -> str:
    tried, refused = 0, {}
    for op in OPS:
        count, refused[op.name] = wrong_shapes(op)
        tried += count
    cells = {op.name: [verdict(op, layout) for layout in LAYOUTS] for op in OPS}
    for name, row in cells.items():
        if row[-1] == "ok" and refused[name] != "ok":
            row[-1] = refused[name]
    head = [
        "# The 106 everyday operations",
        "",
        f"Written by `tools/sparse_table.py` from real runs on torch {torch.__version__.split('+')[0]}. Do not edit.",
        "",
        "ok: forward and gradient of the values equal the dense operation. F: the forward fails. B: the forward",
        "works, the backward fails or gives nothing. (wrong): it runs and the numbers are wrong. dense: the result",
        "has a number in every entry, and one sentence says so: `S.map(f)` for the stored entries, `S.to_dense()`",
        "for all.",
        "",
        f"Gradmend's are also given dense operands that are a row, a column or a dimension too long or too short: {tried}",
        "calls that the dense operation refuses, and so must it; those that broadcast must equal dense.",
        "",
        "| layout | forward works | trains |",
        "|---|---|---|",
    ]
    for k, layout in enumerate(LAYOUTS):
        found = Counter(row[k].split()[0] for row in cells.values())
        forward = found["ok"] + found["B"]
        said = f" (+ {found['dense']} refused as dense)" if found["dense"] else ""
        head.append(f"| {layout} | {forward}{said} | {found['ok']} |")
    head += ["", f"| operation | {' | '.join(LAYOUTS)} |", "|---" * (len(LAYOUTS) + 1) + "|"]
    rows = [f"| `{name}` | {' | '.join(row)} |" for name, row in cells.items()]
    return "\n".join([*head, *rows, ""])


def ours(page: str) -> list[tuple[str, str]]:
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return [(row[0], row[-1]) for row in rows]


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    made = table()
    if "--check" in sys.argv:
        kept = OUT.read_text() if OUT.exists() else ""
        version = torch.__version__.split("+")[0]
        # Another torch has other columns of its own; ours must be the same on each.
        same = kept == made if f"torch {version}." in kept else ours(kept) == ours(made)
        print("the table is up to date" if same else f"{OUT.name} differs from what was run: run this script")
        return 0 if same else 1
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(made)
    print(f"wrote {OUT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
