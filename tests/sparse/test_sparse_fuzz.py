"""The fuzzer and random chains, a few of each; GRADMEND_FUZZ=100000 (calls) makes as many as one has time for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparse_fuzz import CONSTRUCTORS, FUNCTIONS
from torch import Tensor

import gradmend.sparse
from gradmend.sparse import SparseTensor, api
from gradmend.sparse.dispatch import METHODS, TABLE

CALLS = int(os.environ.get("GRADMEND_FUZZ", "600"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="guard pages by mprotect")
def test_calls_between_guard_pages_equal_dense_or_are_refused() -> None:
    """In a process of its own: a read past the end would take this one along."""
    tool = Path(__file__).with_name("sparse_fuzz.py")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(tool), str(CALLS)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    told = eval(done.stdout.strip().splitlines()[-1])
    assert told["equal"] > CALLS / 30 and told["refused"] > CALLS / 30


def test_every_public_name_is_called() -> None:
    """What a user can reach through torch's functions, our methods and the package's own names."""
    elsewhere = {"grad", "backward", "triangular_solve", "coalesce", "is_complex", "is_floating_point"}
    methods, homes = set(METHODS.values()), (torch, torch.linalg, torch.nn.functional)
    called = {TABLE.get(getattr(home, n.removeprefix("linalg."), None)) for n in FUNCTIONS for home in homes}
    left = {
        f.__name__
        for f, op in TABLE.items()
        if op not in methods and op not in called and f.__name__ not in elsewhere
    }
    assert not left
    ours = {"Pattern", "SparseTensor", "sddmm", "cg", "block_diag"}
    tested_by_name = {
        "band",
        "batch",
        "check_ids",
        "diag_of",
        "eye",
        "full",
        "nn",
        "optim",
        "patch",
        "solve_triangular",
        "spsolve",
    }
    errors = {n for n in gradmend.sparse.__all__ if n.endswith("Error")}
    assert set(gradmend.sparse.__all__) - errors == ours | tested_by_name
    assert set(api.CONSTRUCTORS) - set(CONSTRUCTORS) == {"from_lists", "from_torch", "from_scipy"}


def test_the_guards_do_end_a_process_that_reads_on() -> None:
    """What the test above relies on."""
    code = (
        "import sys, torch; sys.path.insert(0, sys.argv[1])\n"
        "import sparse_guards\n"
        "t = sparse_guards.guarded(torch.ones(5))\n"
        "print(t.as_strided((5,), (1,)).sum().item(), flush=True)\n"
        "import ctypes; ctypes.string_at(t.data_ptr(), 21)\n"
        "print('went on')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)], capture_output=True, text=True, check=False
    )
    assert done.returncode < 0 and done.stdout.strip() == "5.0"


Step = Callable[[Any, Tensor], Any]

# Sparse to sparse; the second argument is a dense tensor of the shape.
STEPS: dict[str, Step] = {
    "* 2": lambda S, X: S * 2,
    "* X": lambda S, X: S * X,
    "* row": lambda S, X: S * X[:1],
    "+ S": lambda S, X: S + S.flip(0),
    "- S.t().t()": lambda S, X: S.t().t() - S * 0.5,
    "relu": lambda S, X: torch.relu(S),
    "abs": lambda S, X: S.abs(),
    "tanh": lambda S, X: torch.tanh(S),
    "sin": lambda S, X: S.sin(),
    "** 2": lambda S, X: S**2,
    "t": lambda S, X: S.t(),
    "[1:]": lambda S, X: S[1:] if S.shape[0] > 2 else S,
    "[ix]": lambda S, X: S[[0, -1, 0]],
    "cat": lambda S, X: torch.cat([S, S * 2], 1) if S.shape[1] < 9 else S,
    "flip": lambda S, X: S.flip(1),
    "roll": lambda S, X: S.roll(1, 0),
    "repeat": lambda S, X: S.repeat(1, 2) if S.shape[1] < 5 else S,
    "tril": lambda S, X: S.tril(),
    "S @ S.t()": lambda S, X: S @ S.t() / 4,
    "reshape": lambda S, X: S.reshape(S.shape[1], S.shape[0]),
    "clamp": lambda S, X: S.clamp(-1.5, 1.5),
    "maximum": lambda S, X: torch.maximum(S, S.roll(1, 1)),
}
ENDS: dict[str, Step] = {
    "@ X": lambda S, X: S @ X.t(),
    "X @": lambda S, X: X.t() @ S,
    "sum(0)": lambda S, X: S.sum(0),
    "mean(1)": lambda S, X: S.mean(1),
    "prod(1)": lambda S, X: S.prod(1),
    "prod(0)": lambda S, X: S.prod(0),
    "norm(dim=1)": lambda S, X: torch.linalg.vector_norm(S, 2, 1),
    "norm(1, dim=0)": lambda S, X: S.norm(1, 0),
    "amax(1)": lambda S, X: S.amax(1),
    "logsumexp": lambda S, X: S.logsumexp(0),
    "var": lambda S, X: S.var(1, unbiased=False),
    "to_dense": lambda S, X: S.to_dense(),
    "diagonal": lambda S, X: S.diagonal(),
    "cumsum": lambda S, X: S.cumsum(1),
    "trace": lambda S, X: torch.trace(S @ S.t()),
}
# Roots have no second derivative at rows of zeros, where torch's own is nan or 0 by the road taken.
ONCE = {"norm(dim=1)"}


@settings(
    max_examples=min(max(CALLS // 5, 120), 5000), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=14),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=4),
    st.sampled_from(sorted(ENDS)),
    st.integers(0, 10**6),
)
def test_random_chains_equal_dense_with_double_backward(
    rows: int, cols: int, places: list[tuple[int, int]], steps: list[str], end: str, seed: int
) -> None:
    index = torch.tensor([(r % rows, c % cols) for r, c in places], dtype=torch.int64).reshape(-1, 2).t()
    g = torch.Generator().manual_seed(seed)
    start = (
        torch.randint(-4, 5, (index.shape[1],), generator=g).double() / 2
    )  # stored zeros and ties included

    def run(build: Callable[[Tensor], Any]) -> list[Tensor]:
        v = start.clone().requires_grad_()
        S = build(v)
        noise = torch.Generator().manual_seed(seed)
        for step in steps:
            S = STEPS[step](S, torch.randn(*S.shape, generator=noise, dtype=torch.float64))
        out = ENDS[end](S, torch.randn(*S.shape, generator=noise, dtype=torch.float64))
        weight = torch.randn(out.shape, generator=noise, dtype=torch.float64)
        made = [out.detach()]
        if not out.requires_grad:
            return [*made, torch.zeros_like(v), torch.zeros_like(v)]
        (first,) = torch.autograd.grad(
            (out * weight + out * out).sum(), v, create_graph=True, allow_unused=True
        )
        made.append(torch.zeros_like(v) if first is None else first.detach())
        if first is None or not first.requires_grad or end in ONCE:
            return [*made, torch.zeros_like(v)]
        (second,) = torch.autograd.grad((first * first).sum(), v, allow_unused=True)
        return [*made, torch.zeros_like(v) if second is None else second]

    size = (rows, cols)
    ours = run(lambda v: SparseTensor.from_coo(index, v, size))
    theirs = run(lambda v: v.new_zeros(size).index_put(tuple(index), v, accumulate=True))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
