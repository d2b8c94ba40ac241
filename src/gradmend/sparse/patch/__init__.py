"""`patch()`: PyTorch's own sparse tensors, with backward passes that are right and never dense.

with gradmend.sparse.patch():
    A = torch.sparse_coo_tensor(index, weight, (n, n))
    (A @ X).sum().backward()          # weight.grad, without an n x n matrix on the way

gradmend.sparse.patch()               # or for good

Gradients equal torch's. A sparse leaf (`A.requires_grad_()`) and a dense tensor made sparse have the gradient of the
dense matrix in torch: `patch(masked=True)` gives them that of the stored entries only.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import torch

from gradmend.sparse import dynamo
from gradmend.sparse.dispatch import _HOMES, TABLE
from gradmend.sparse.patch import constructors, routes

_depth = 0
_before: list[tuple[Any, str, Any]] = []
# Made once and kept: torch.jit remembers functions by id, and an id is given away with its owner's death.
_made: dict[Any, Any] = {}
_ABSENT = object()


class patch:
    """Takes effect when called, and ends when used as a context manager and left, or by `undo()`.

    `masked`: the gradient of a sparse leaf has its layout and places, and that of a dense tensor made sparse is zero
    where nothing was stored. PyTorch computes the gradient of the dense matrix for both.
    """

    def __init__(self, masked: bool = False) -> None:
        global _depth
        _depth += 1
        self._live, self._masked = True, bool(masked)
        routes.masked += self._masked
        if _depth == 1:
            _install()

    def undo(self) -> None:
        global _depth
        if not self._live:
            return
        self._live = False
        routes.masked -= self._masked
        _depth -= 1
        if _depth == 0:
            _restore()

    def __enter__(self) -> patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<gradmend.sparse.patch, {'in effect' if self._live else 'undone'}>"


def _replace(home: Any, name: str, made: Any) -> None:
    # An inherited name (torch.Tensor's come from its C base) is restored by taking ours away again.
    _before.append((home, name, vars(home).get(name, _ABSENT)))
    setattr(home, name, made)


def _install() -> None:
    # Not A.T and A.mT: torch.compile takes a property for an input of its own, and fails where two of them are one
    # tensor (2.13). torch's own are right to first order, and more is refused.
    for name in routes.NAMES:
        for home in _HOMES:
            original = getattr(home, name, None)
            op = TABLE.get(original)
            if original is None or op is None:
                continue
            if original not in _made:
                _made[original] = _scriptable(original, routes.route(original, op, name))
            _replace(home, name, _made[original])
    own = {
        torch.sparse_csr: constructors.compressed(torch.sparse_csr_tensor, torch.sparse_csr),
        torch.sparse_csc: constructors.compressed(torch.sparse_csc_tensor, torch.sparse_csc),
    }
    _replace(torch, "sparse_compressed_tensor", constructors.general(torch.sparse_compressed_tensor, own))
    _replace(torch, "sparse_coo_tensor", constructors.coo(torch.sparse_coo_tensor))
    _replace(torch, "sparse_csr_tensor", own[torch.sparse_csr])
    _replace(torch, "sparse_csc_tensor", own[torch.sparse_csc])


def _scriptable(original: Any, made: Any) -> Any:
    """torch.jit.script knows builtins by identity: ours must count as the one it stands for."""
    from torch.jit import _builtins

    name = _builtins._find_builtin(original)
    if name is not None:
        _builtins._register_builtin(made, name)
    return made


def _restore() -> None:
    while _before:
        home, name, value = _before.pop()
        if value is _ABSENT:
            delattr(home, name)
        else:
            setattr(home, name, value)
    # If torch.compile first looked while torch was patched, it took our functions for torch's own.
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.clear_lru_cache()
    dynamo.forget()
