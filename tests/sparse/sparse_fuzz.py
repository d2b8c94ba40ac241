"""Every public name with operands of all kinds, each between two pages that can't be touched.

    python sparse_fuzz.py 100000

A call must equal dense, or raise an error of ours, or fail where dense fails too. A read or write past the end of an
operand, of a pattern's indices or of a result ends this process. The compiled kernels run whatever the size.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

import gradmend.sparse as gs
from gradmend.errors import GradmendError
from gradmend.sparse import Pattern, SparseTensor, api
from gradmend.sparse.dispatch import METHODS
from gradmend.sparse.kernels import gustavson, matmul, rows, segment

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None)


def guarded(t: Tensor) -> Tensor:
    """The same numbers, in memory whose last byte is followed by a page that can't be read or written."""
    t = t.detach().contiguous()
    size = t.numel() * t.element_size()
    if size == 0 or t.is_conj() or t.is_neg():
        return t
    pages = -(-size // PAGE)
    region = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    for page in (start, start + (pages + 1) * PAGE):
        assert _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), mmap.PROT_READ * 0) == 0
    at = (pages + 1) * PAGE - size
    memory = torch.from_numpy(np.frombuffer(region, np.uint8, size, at))
    return memory.view(t.dtype).view(t.shape).copy_(t)


def arm() -> None:
    """Patterns and results live between guards too, and nothing is too small for a kernel."""
    for module in (matmul, segment, rows, gustavson):
        module.SMALL = 0  # type: ignore[attr-defined]
    for module in (matmul, segment):
        empty = module.empty
        module.empty = lambda size, dtype, made=empty: guarded(made(size, dtype).zero_())  # type: ignore[attr-defined]
    plain = Pattern._set

    def _set(self: Pattern, indices: Tensor, size: Any, slot: Tensor | None = None) -> None:
        plain(self, guarded(indices) if type(indices) is Tensor else indices, size, slot)

    Pattern._set = _set  # type: ignore[method-assign]


class Maker:
    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.g = torch.Generator().manual_seed(seed)
        self.dtype = self.r.choice(
            [torch.float32] * 3 + [torch.float64] * 3 + [torch.bfloat16, torch.int64, torch.complex64]
        )

    def numbers(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        kind = dtype or self.dtype
        return guarded(torch.randint(-3, 4, shape, generator=self.g).to(kind))

    def strided(self, x: Tensor) -> Tensor:
        """The same shape with other strides: turned, every second one, overlapping, expanded."""
        how = self.r.randrange(6)
        if how == 0 and x.dim() > 1:
            return guarded(x.transpose(0, -1)).transpose(0, -1)
        if how == 1 and x.dim():
            return guarded(torch.stack([x, x], -1))[..., 0]
        if how == 2 and x.dim() and x.shape[0]:
            return x[:1].expand(x.shape)
        if how == 3 and x.dim() == 2 and x.numel():
            return guarded(self.numbers(sum(x.shape) - 1)).as_strided(x.shape, (1, 1))
        return x

    def shape(self) -> tuple[int, ...]:
        return tuple(self.r.choice([0, 1, 1, 2, 3, 4, 5, 9]) for _ in range(self.r.randrange(5)))

    def sparse(self, size: tuple[int, ...] | None = None, dtype: torch.dtype | None = None) -> SparseTensor:
        plain = size is not None
        if size is None:
            size = tuple(self.r.choice([1, 2, 3, 4, 6, 17]) for _ in range(self.r.choice([1, 2, 2, 2, 2, 3])))
        n = self.r.randrange(0, 14)
        index = torch.stack([torch.randint(max(m, 1), (n,), generator=self.g) for m in size])
        if 0 in size:
            index = index[:, :0]
        batch = 0 if plain else self.r.choice([0, 0, 0, 1, 2])
        tail = () if plain else self.r.choice([(), (), (), (2,)])
        lead = tuple(self.r.choice([1, 2, 3]) for _ in range(batch))
        if self.r.random() < 0.5:
            index = torch.unique(index, dim=1) if index.numel() else index
        return SparseTensor.from_coo(
            index, self.numbers(*lead, index.shape[1], *tail, dtype=dtype), size, batch_dims=batch
        )

    def argument(self, S: SparseTensor) -> Any:
        shape, r = tuple(S.shape), self.r
        makers: list[Callable[[], Any]] = [
            lambda: r.randint(-4, 5),
            lambda: r.choice([0, 1, -1]),
            lambda: r.choice([0.5, -1.5, 2.0, True, None, "sum", "max", 10**12]),
            lambda: tuple(r.randint(-3, 4) for _ in range(r.randrange(4))),
            lambda: self.strided(self.numbers(*shape)),
            lambda: self.strided(self.numbers(*shape[-1:], r.choice([1, 3, 7, 20]))),
            lambda: self.strided(self.numbers(*shape[:-2], *shape[-1:], r.choice([1, 2, 5]))),
            lambda: self.strided(self.numbers(*(r.choice([1, n]) for n in shape))),
            lambda: self.strided(self.numbers(*self.shape())),
            lambda: self.sparse(shape) if len(shape) <= 4 and shape else self.sparse(),
            lambda: self.sparse(),
            lambda: S.t() if S.ndim == 2 else S,
            lambda: torch.randint(-3, 9, (r.randrange(4),), generator=self.g),
            lambda: torch.randint(0, 2, shape[:1] or (1,), generator=self.g).bool(),
            lambda: torch.randint(0, 2, shape, generator=self.g).bool(),
            lambda: torch.tensor(r.choice([-1, 0, 2, 2**62])),
        ]
        return r.choice(makers)()


# Stored entries only, random, or without a like among dense tensors: asked to survive, not to equal.
OTHER = {
    *("softmax", "log_softmax", "propagate", "aggregate", "sparse_mask", "sampled_addmm", "dropout", "rrelu"),
    *(
        "alpha_dropout",
        "empty_like",
        "sparsify",
        "unbatch",
        "to_sparse",
        "to_torch",
        "to_scipy",
        "to_edge_index",
        "spsolve",
    ),
    *(
        "to_sparse_coo",
        "to_sparse_csr",
        "to_sparse_csc",
        "to_sparse_bsr",
        "to_sparse_bsc",
        "smm",
        "hspmm",
        "nonzero",
    ),
    *(
        "div",
        "divide",
        "true_divide",
        "__truediv__",
        "__div__",
        "remainder",
        "fmod",
        "floor_divide",
        "__mod__",
    ),
    *(
        "__floordiv__",
        "__rmod__",
        "__rfloordiv__",
        "__rdiv__",
        "__rtruediv__",
        "type",
        "share_memory_",
        "solve",
    ),
    *(
        "topk",
        "max",
        "min",
        "argmax",
        "argmin",
        "aminmax",
        "data_ptr",
        "where",
        "cuda",
        "pin_memory",
        "std",
        "var",
    ),
    *(
        "__rmatmul__",
        "__radd__",
        "__rsub__",
        "__rmul__",
        "__rpow__",
        "rsub",
        "tolist",
        "item",
        "gather",
        "equal",
        "pow",
    ),
    *(
        "split",
        "chunk",
        "unbind",
        "sign",
        "sgn",
        "solve_triangular",
        "matrix_norm",
        "norm",
        "squeeze",
        "vector_norm",
        "__pow__",
    ),
}
# Shapes that dense refuses must be refused here too.
STRICT = {
    "matmul",
    "mm",
    "mv",
    "bmm",
    "__matmul__",
    "linear",
    "mul",
    "add",
    "sub",
    "__add__",
    "__mul__",
    "__sub__",
}


def dense(x: Any) -> Any:
    return x.to_dense() if isinstance(x, SparseTensor) else x


def like(name: str) -> Any:
    for home in (Tensor, torch, F, torch.special, torch.linalg):
        if callable(found := getattr(home, name, None)):
            return found
    return None


def attempt(f: Callable[..., Any], args: list[Any]) -> tuple[Any, Exception | None]:
    try:
        return f(*args), None
    except Exception as error:
        return None, error


def method(name: str, m: Maker) -> str:
    S = m.sparse()
    args = [m.argument(S) for _ in range(m.r.choice([0, 0, 0, 1, 1, 1, 1, 2, 3]))]
    if any(isinstance(a, int) and a > 10**6 for a in args) and name in (
        "repeat",
        "tile",
        "expand",
        "roll",
        "topk",
    ):
        return "skipped"
    got, error = attempt(METHODS[name], [S, *args])
    oracle = like(name)
    if name in OTHER or oracle is None:
        return "survived"
    want, refused = attempt(oracle, [dense(S), *(dense(a) for a in args)])
    if error is not None:
        if isinstance(error, GradmendError) or refused is not None:
            return "refused"
        if isinstance(error, TypeError | IndexError) and "gradmend" not in str(error) and _said_by_us(error):
            return "refused"
        raise AssertionError(f"{name}{args}: dense answers, and {type(error).__name__}: {error}") from error
    if refused is not None:
        assert name not in STRICT or isinstance(refused, TypeError), (
            f"{name}{args} on {tuple(S.shape)}: dense says {refused}"
        )
        return "lenient"
    if got is NotImplemented or not isinstance(want, Tensor) or not isinstance(got, Tensor | SparseTensor):
        return "survived"
    made = dense(got)
    close = (
        {"atol": 0.1, "rtol": 0.05} if made.dtype == torch.bfloat16 or want.dtype == torch.bfloat16 else {}
    )
    torch.testing.assert_close(
        made, want.to(made.dtype), equal_nan=True, **close, msg=lambda said: f"{name}{args}: {said}"
    )
    return "equal"


def _said_by_us(error: BaseException) -> bool:
    """Raised by a line of ours, or by Python for arguments that don't fit."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and (
        "gradmend/sparse" in trace.tb_frame.f_code.co_filename or "argument" in str(error)
    )


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
        "sddmm": [m.sparse().pattern, m.numbers(*m.shape()), m.numbers(*m.shape())],
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
    if error is not None:
        assert isinstance(error, GradmendError), f"{name}{cases[name]}: {type(error).__name__}: {error}"
        return "refused"
    if (
        isinstance(got, SparseTensor)
        and got.pattern.ndim == 2
        and not got.dense_dim()
        and got.numel() < 10**4
        and not got.batch_dims
    ):
        X = m.numbers(got.shape[1], r.choice([1, 3, 8, 17]), dtype=got.dtype)
        torch.testing.assert_close(
            (got @ X).double() if not got.is_complex() else got @ X,
            (got.to_dense() @ X).double() if not got.is_complex() else got.to_dense() @ X,
            atol=0.1,
            rtol=0.05,
        )
        return "equal"
    return "survived"


CONSTRUCTORS = (
    *(
        "from_coo",
        "Pattern",
        "Pattern.sorted",
        "Pattern.from_keys",
        "from_csr",
        "from_csc",
        "from_bsr",
        "from_edge_index",
    ),
    *("from_dense", "sddmm", "SparseTensor", "cg", "block_diag", "kernels.spmm"),
)
NAMES = (*sorted(METHODS), *CONSTRUCTORS * 3)


def fuzz(calls: int) -> Counter[str]:
    told: Counter[str] = Counter()

    @settings(
        max_examples=calls,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(st.sampled_from(NAMES), st.integers(0, 2**32 - 1))
    def one(name: str, seed: int) -> None:
        m = Maker(seed)
        told[constructor(name, m) if name in CONSTRUCTORS else method(name, m)] += 1

    one()
    return told


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    arm()
    print(dict(fuzz(int(sys.argv[1]))))
