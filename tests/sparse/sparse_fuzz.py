"""Every public name with operands of all kinds, each between two pages that can't be touched.

    python sparse_fuzz.py 100000            # calls, other ones each time
    python sparse_fuzz.py 100000 7          # the same ones each time
    python sparse_fuzz.py __add__ 12345     # one call, as a failure names it

A call must equal what it says in sparse_oracles.py (most often the dense operation), or raise an error of ours. A read
or write past the end of an operand, of a pattern's indices or of a result ends this process. The compiled kernels run
whatever the size. A run goes on after a failure, and tells the first of each name at its end.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from sparse_guards import arm
from sparse_meant import MEANT, Long
from sparse_operands import Maker
from sparse_oracles import (
    ORACLES,
    RANDOM,
    Unlike,
    check,
    dense,
    of_torch,
    random_ones,
    same_object_rules,
    stored,
    tidy,
)
from sparse_trained import TRAINED
from torch import Tensor

import gradmend.sparse as gs
from gradmend.errors import GradmendError
from gradmend.sparse import Pattern, SparseTensor, api
from gradmend.sparse.dispatch import METHODS
from gradmend.sparse.kernels import matmul

# A result as long as the number says: what dense would do is to run out of memory.
LONG = {"repeat", "tile", "expand", "broadcast_to", "roll", "topk", "diag", "diag_embed", "diagflat"}
# Answers where the dense operation refuses, and why that is right.
NOTHING_STORED = "0 // 0 and 0 % 0 of whole numbers where nothing is stored"
LENIENT = {
    **dict.fromkeys(("diag_embed", "diagflat"), "a result longer than memory"),
    **dict.fromkeys(("max", "min", "squeeze"), "None is no dimension"),
    **dict.fromkeys(("floor_divide", "__floordiv__", "remainder", "fmod", "__mod__", "div"), NOTHING_STORED),
    "kron": "torch's own needs other strides",
    "logsumexp": "torch's own fails for no dimensions of a vector",
}


def attempt(f: Callable[..., Any], args: list[Any]) -> tuple[Any, Exception | None]:
    try:
        return f(*args), None
    except Exception as error:
        return None, error


def slipped(error: Exception) -> bool:
    """An error of Python's or torch's that only the boundary made ours: right where dense refuses too."""
    said = str(error)  # Python's own count of arguments is clear enough: torch has old spellings with more
    return error.__cause__ is not None and "can't take these" in said and "positional arg" not in said


def shown(name: str, S: SparseTensor, args: list[Any]) -> str:
    parts = [
        f"{type(a).__name__}{tuple(a.shape)} {a.dtype}" if hasattr(a, "shape") else repr(a) for a in args
    ]
    return f"{name}({', '.join(parts)}) of {tuple(S.shape)} {S.dtype}, batch {S.batch_dims}, dense {S.dense_dim()}"


def judge(name: str, S: SparseTensor, args: list[Any], got: Any, error: Exception | None) -> str:
    """What became of one call: equal, refused, or an assertion."""
    oracle = ORACLES.get(name)
    if oracle is not None:
        want, refused = attempt(oracle, [S, *args])
    else:
        plain = of_torch(name)
        if plain is None:
            raise AssertionError(f"nobody says what {name} must answer")
        want, refused = attempt(plain, [dense(S), *(dense(a) for a in args)])
    if want is NotImplemented:
        refused = TypeError("no operator for these")
    if error is not None:
        if isinstance(error, GradmendError) and not (refused is None and slipped(error)):
            return "refused"
        raise AssertionError(f"{shown(name, S, args)}: {type(error).__name__}: {error}") from error
    if name in RANDOM:
        random_ones(name, S, args, got)
        return "equal"
    if got is NotImplemented:
        return "refused"
    if refused is not None:
        if name in LENIENT:
            return "lenient"
        raise AssertionError(f"{shown(name, S, args)}: dense refuses, {type(refused).__name__}: {refused}")
    try:
        if name in ("argmax", "argmin", "max", "min") and args and isinstance(want, Tensor | tuple):
            _extreme(name, S, args, got)
        else:
            check(tidy(name, got), tidy(name, want) if isinstance(want, tuple) else want)
    except Unlike as wrong:
        raise AssertionError(f"{shown(name, S, args)}: {wrong}") from wrong
    return "equal"


def _extreme(name: str, S: SparseTensor, args: list[Any], got: Any) -> None:
    """Of equal numbers any may be named."""
    if isinstance(args[0], Tensor | SparseTensor):
        check(got, getattr(torch, name)(dense(S), dense(args[0])))
        return
    X, dim = dense(S), args[0]
    top = X.amax(dim) if "max" in name else X.amin(dim)
    value, at = (got.values, got.indices) if isinstance(got, tuple) else (None, got)
    at = dense(at)
    found = (
        X.reshape(-1)[at] if dim is None else X.gather(dim, at.unsqueeze(dim) if at.dim() < X.dim() else at)
    )
    check(found.reshape(top.shape), top)
    if value is not None:
        check(dense(value).reshape(top.shape), top)


def method(name: str, m: Maker) -> str:
    S = m.square(m.r.choice([1, 3, 5])) if "solve" in name and m.r.random() < 0.7 else m.sparse()
    args = m.fitting(name, S) if m.r.random() < 0.5 else None
    if args is None:
        count = m.r.choice([0, 0, 0, 1, 1, 1, 1, 2, 3])
        if name.startswith("__"):  # Python itself counts an operator's operands
            count = 0 if name in ("__abs__", "__neg__", "__pos__", "__invert__") else 1
        args = [m.argument(S) for _ in range(count)]
    if "solve" in name and m.r.random() < 0.7:
        args = [m.numbers(S.shape[0], *m.r.choice([(), (2,)]), dtype=S.dtype)]
    if name in LONG and any(isinstance(a, int) and a > 10**6 for a in args):
        return "skipped"
    if name == "solve_triangular":
        upper = m.r.choice([True, False])
        got, error = attempt(lambda *a: S.solve_triangular(*a, upper=upper), args)
        want, refused = attempt(lambda *a: torch.linalg.solve_triangular(dense(S), *a, upper=upper), args)
        if error is not None:
            assert isinstance(error, GradmendError), f"{shown(name, S, args)}: {error!r}"
            return "refused"
        if refused is not None:  # torch's own takes no right side that is a vector
            assert args[0].dim() == 1, f"{shown(name, S, args)}: dense refuses, {refused!r}"
            want = torch.linalg.solve_triangular(dense(S), args[0][:, None], upper=upper)[:, 0]
        if not bool((dense(S).diagonal() == 0).any()):
            check(got, want)
        return "equal"
    got, error = attempt(getattr(SparseTensor, name), [S, *args])
    return judge(name, S, args, got, error)


def _of_two(f: Any) -> Callable[[Maker], tuple[Any, list[Any]]]:
    """Two tensors of one shape, at least one of them sparse."""

    def make(m: Maker) -> tuple[Any, list[Any]]:
        a = m.sparse()
        b = m.argument(a) if m.r.random() < 0.5 else m.sparse(tuple(a.shape))
        return f, [a, b] if m.r.random() < 0.7 else [b, a]

    return make


def _joined(f: Any, dims: bool = True) -> Callable[[Maker], tuple[Any, list[Any]]]:
    def make(m: Maker) -> tuple[Any, list[Any]]:
        a = m.sparse()
        rest = [m.r.choice([a, m.argument(a), m.sparse(tuple(a.shape))]) for _ in range(m.r.randrange(3))]
        return f, [[a, *rest], *([m.r.randint(-3, 3)] if dims else [])]

    return make


def _addmm(m: Maker) -> tuple[Any, list[Any]]:
    a = m.sparse()
    right = m.strided(m.numbers(*a.shape[-1:], m.r.choice([1, 3, 8])))
    C = m.r.choice([m.numbers(*a.shape[:1], *right.shape[-1:]), m.numbers(*right.shape[-1:]), m.argument(a)])
    return m.r.choice([torch.addmm, torch.sparse.addmm]), [C, a, m.r.choice([right, right, m.argument(a)])]


def _addmv(m: Maker) -> tuple[Any, list[Any]]:
    a = m.sparse()
    return torch.addmv, [m.numbers(*a.shape[:1]), a, m.r.choice([m.numbers(*a.shape[-1:]), m.argument(a)])]


def _linear(m: Maker) -> tuple[Any, list[Any]]:
    w = m.sparse()
    x = m.strided(m.numbers(*m.r.choice([(), (2,), (2, 3)]), *w.shape[-1:]))
    return F.linear, [m.r.choice([x, x, m.argument(w)]), w, m.r.choice([None, m.numbers(*w.shape[:1])])]


def _einsum(m: Maker) -> tuple[Any, list[Any]]:
    words = ["ij,jk->ik", "ij,kj->ik", "ij,ij->", "ij,j->i", "ij->ji", "ij->i", "ii->i", "ij,ij->ij", "ij,jk,kl->il", "i,i->", "ij", "abc,cd->abd"]  # fmt: skip
    S = m.sparse()
    n, k = S.shape[-1], S.shape[0]
    other = m.r.choice([m.numbers(n, 3), m.numbers(*S.shape), m.numbers(n), m.sparse(), m.argument(S)])
    operands = m.r.choice([[S], [S, other], [S, other], [S, other, m.numbers(3, k)]])
    return torch.einsum, [m.r.choice(words), *operands]


def _tensordot(m: Maker) -> tuple[Any, list[Any]]:
    S = m.sparse()
    return torch.tensordot, [
        S,
        m.r.choice([m.numbers(*S.shape), m.argument(S)]),
        m.r.choice([1, 2, ([0], [0]), ([-1], [-1])]),
    ]


def _normalize(m: Maker) -> tuple[Any, list[Any]]:
    return F.normalize, [
        m.sparse(),
        m.r.choice([1, 2, 3.0, m.argument(m.sparse((2, 2)))]),
        m.r.randint(-3, 3),
    ]


def _where(m: Maker) -> tuple[Any, list[Any]]:
    S = m.sparse()
    mask = m.r.choice([torch.randint(0, 2, tuple(S.shape), generator=m.g).bool(), S != 0, m.argument(S)])
    other = m.r.choice([0, m.numbers(*S.shape), m.sparse(tuple(S.shape)), m.argument(S)])
    return torch.where, [mask, *([S, other] if m.r.random() < 0.5 else [other, S])]


def _of_one(f: Any) -> Callable[[Maker], tuple[Any, list[Any]]]:
    def make(m: Maker) -> tuple[Any, list[Any]]:
        S = m.sparse()
        return f, [S, *(m.argument(S) for _ in range(m.r.choice([0, 0, 1, 1, 2])))]

    return make


def _lossy(name: str) -> Callable[[Maker], tuple[Any, list[Any]]]:
    def make(m: Maker) -> tuple[Any, list[Any]]:
        f, reduction = getattr(F, name), m.r.choice(["mean", "sum", "none", "most"])
        return lambda a, b: f(a, b, reduction=reduction), _of_two(f)(m)[1]

    return make


# torch's functions that are no methods of ours.
FUNCTIONS: dict[str, Callable[[Maker], tuple[Any, list[Any]]]] = {
    "addmm": _addmm,
    "addmv": _addmv,
    "linear": _linear,
    "einsum": _einsum,
    "tensordot": _tensordot,
    "cat": _joined(torch.cat),
    "stack": _joined(torch.stack),
    "vstack": _joined(torch.vstack, False),
    "hstack": _joined(torch.hstack, False),
    "column_stack": _joined(torch.column_stack, False),
    "block_diag": lambda m: (torch.block_diag, [m.sparse(), m.sparse()]),
    "normalize": _normalize,
    "linalg.norm": _of_one(torch.linalg.norm),
    "real": _of_one(torch.real),
    "imag": _of_one(torch.imag),
    "result_type": _of_two(torch.result_type),
    "numel": _of_one(torch.numel),
    "where": _where,
    **{n: _lossy(n) for n in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div")},
}


def function(name: str, m: Maker) -> str:
    f, args = FUNCTIONS[name](m)

    def all_dense(x: Any) -> Any:
        return [dense(y) for y in x] if isinstance(x, list) else dense(x)

    if not any(isinstance(y, SparseTensor) for x in args for y in (x if isinstance(x, list) else [x])):
        return "skipped"
    got, error = attempt(f, args)
    want, refused = attempt(f, [all_dense(x) for x in args])
    said = ", ".join(f"{type(x).__name__} {tuple(x.shape) if hasattr(x, 'shape') else x}" for x in args)
    if error is not None:
        ours = isinstance(error, GradmendError) and not (refused is None and slipped(error))
        # torch's own parser speaks before it hands a call over.
        assert ours or (refused is not None and isinstance(error, TypeError)), f"{name}({said}): {error!r}"
        return "refused"
    assert refused is None, f"{name}({said}): dense refuses, {refused!r}"
    try:
        check(got, want)
    except Unlike as wrong:
        raise AssertionError(f"{name}({said}): {wrong}") from wrong
    return "equal"


def life(m: Maker) -> str:
    """A tensor's own attributes and methods."""
    S = m.sparse()
    same_object_rules(S)
    X = dense(S)
    check(S.T, X.permute(*reversed(range(X.dim()))))
    if S.ndim > 1:
        check(S.mT, X.mT)
    check(S.map(lambda v: v * 2), X * 2)
    for wrong in ("copy_", "map", "like"):
        _, error = attempt(getattr(S, wrong), [m.argument(S)])
        assert error is None or isinstance(error, GradmendError | TypeError | AttributeError), repr(error)
    if m.dtype.is_floating_point:
        S = SparseTensor(S.pattern, S.values().detach().clone().requires_grad_(), batch_dims=S.batch_dims)
        (S * S).sum().backward()
        check(S.grad, torch.where(stored(S), 2 * dense(S).detach(), 0))
    return "equal"


def _factors(m: Maker) -> list[Any]:
    pattern, k, lead = m.sparse((4, 6)).pattern, m.r.choice([1, 3, 8, 17]), m.r.choice([(), (2,), (1, 3)])
    A, B = m.strided(m.numbers(*lead, 4, k)), m.strided(m.numbers(*m.r.choice([(), lead]), k, 6))
    return [pattern, m.r.choice([A, A, m.numbers(*m.shape())]), m.r.choice([B, B, m.numbers(*m.shape())])]


def constructor(name: str, m: Maker) -> str:
    """Right and wrong indices, sizes and values: a tensor that equals dense, or an error of ours."""
    r = m.r
    size = tuple(r.choice([0, 1, 3, 5]) for _ in range(r.choice([1, 2, 2, 2, 3])))
    n = r.randrange(6)
    low, high = r.choice([(0, 3), (0, 5), (-2, 4), (0, 2**62), (-(2**62), 5)])
    index = torch.randint(low, high, (r.choice([len(size), 2, 3]), n), generator=m.g)
    index = r.choice(
        [index, index, index.int(), index.float(), index.tolist(), index.numpy(), index[0], index.t()]
    )
    values = m.numbers(r.choice([n, n, n, n + 1, 0]), *r.choice([(), (), (2,)]))
    pointers = torch.tensor([*sorted(r.randrange(0, n + 1) for _ in range(r.randrange(1, 6))), n])
    cases: dict[str, list[Any]] = {
        "from_coo": [index, values, r.choice([size, None, (*size, 2)])],
        "Pattern": [index, r.choice([size, None])],
        "Pattern.sorted": [index, size],
        "Pattern.from_keys": [r.choice([index, torch.randint(low, high, (n,), generator=m.g)]), size],
        "from_csr": [
            r.choice([pointers, pointers - 1, [0, *pointers.tolist()]]),
            torch.randint(low, high, (n,), generator=m.g),
            values,
            r.choice([size, None]),
        ],
        "from_csc": [
            [0, *pointers.tolist()],
            torch.randint(low, high, (n,), generator=m.g),
            values,
            r.choice([size, None]),
        ],
        "from_bsr": [
            [0, *pointers.tolist()],
            torch.randint(low, high, (n,), generator=m.g),
            m.numbers(n, 2, 2),
            r.choice([size, None]),
        ],
        "from_edge_index": [
            torch.randint(low, high, (2, n), generator=m.g),
            r.choice([None, m.numbers(n), values]),
            r.choice([None, 3, 5]),
        ],
        "from_dense": [
            m.strided(m.numbers(*m.shape())),
            r.choice([None, None, m.sparse().pattern, torch.ones(2, 2) > 0]),
        ],
        "sddmm": _factors(m),
        "SparseTensor": [m.sparse().pattern, values],
        "cg": [m.sparse(), m.numbers(*m.shape())],
        "block_diag": [m.sparse(), m.sparse()],
        "kernels.spmm": [
            pointers,
            torch.randint(low, high, (n,), generator=m.g),
            values,
            m.numbers(*m.shape()),
        ],
    }
    f = {
        "Pattern": Pattern, "Pattern.sorted": Pattern.sorted, "Pattern.from_keys": Pattern.from_keys, "SparseTensor": SparseTensor,
        "sddmm": gs.sddmm, "cg": gs.cg, "block_diag": gs.block_diag, "kernels.spmm": matmul.spmm,
    }.get(name) or api.CONSTRUCTORS[name]  # fmt: skip
    got, error = attempt(f, cases[name])
    want, refused = attempt(MEANT[name], cases[name])
    if error is not None:
        ours = isinstance(error, GradmendError) and not (refused is None and slipped(error))
        assert ours, f"{name}{cases[name]}: {type(error).__name__}: {error}"
        return "refused"
    if isinstance(refused, Long):
        return "lenient"
    assert refused is None, f"{name}{cases[name]}: should be refused: {refused!r}"
    try:
        check(got, want)
        if isinstance(got, SparseTensor) and got.ndim == got.pattern.ndim == 2:
            X = m.numbers(got.shape[1], r.choice([1, 3, 8, 17]), dtype=got.dtype)
            check(got @ X, want @ X)
    except Unlike as wrong:
        raise AssertionError(f"{name}{cases[name]}: {wrong}") from wrong
    return "equal"


CONSTRUCTORS = (
    *("from_coo", "Pattern", "Pattern.sorted", "Pattern.from_keys", "from_csr", "from_csc", "from_bsr"),
    *("from_edge_index", "from_dense", "sddmm", "SparseTensor", "cg", "block_diag", "kernels.spmm"),
)
NAMES = (*sorted(METHODS), *(f"torch.{n}" for n in FUNCTIONS), "life", *TRAINED, *CONSTRUCTORS * 3)


def one_call(name: str, seed: int) -> str:
    m = Maker(seed)
    if name == "life":
        return life(m)
    if name in TRAINED:
        return TRAINED[name](m)
    if name.startswith("torch."):
        return function(name.removeprefix("torch."), m)
    return constructor(name, m) if name in CONSTRUCTORS else method(name, m)


class Log:
    """What became of the calls. The one under way is kept in a file, which outlives a process that a guard page ends."""

    def __init__(self) -> None:
        self.told: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self._last = tempfile.NamedTemporaryFile(prefix="sparse_fuzz_", suffix=".txt", delete=False)  # noqa: SIM115
        print(f"the call under way: {self._last.name}", flush=True)

    def call(self, name: str, seed: int) -> None:
        os.pwrite(self._last.fileno(), f"{name} {seed}".ljust(80).encode(), 0)
        try:
            self.told[one_call(name, seed)] += 1
        except Exception as error:
            self.told["failed"] += 1
            self.failures.setdefault(name, f"{name} {seed}: {type(error).__name__}: {error}")

    def end(self) -> int:
        self._last.close()
        os.unlink(self._last.name)
        for said in self.failures.values():
            print(said)
        print(dict(self.told))
        return 1 if self.failures else 0


def fuzz(calls: int, start: int | None) -> int:
    """The number of the process's exit."""
    log = Log()

    @settings(
        max_examples=calls,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),  # a seed is a seed: a smaller one is no simpler call
    )
    @given(st.sampled_from(NAMES), st.integers(0, 2**32 - 1))
    def one(name: str, seed: int) -> None:
        log.call(name, seed)

    (one if start is None else with_seed(start)(one))()
    return log.end()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    arm()
    what, *more = sys.argv[1:]
    if what in NAMES:
        print(one_call(what, int(more[0])))
    else:
        sys.exit(fuzz(int(what), int(more[0]) if more else None))
