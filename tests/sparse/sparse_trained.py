"""Modules, clipping and optimizers with random arguments: as the dense ones, or an error of ours (torch's own in its checks)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from sparse_operands import Maker
from sparse_oracles import check, dense
from torch import Tensor, nn

from gradmend.errors import GradmendError
from gradmend.sparse.nn import SparseLinear, SparseWeight, clip_grad_norm_, clip_grad_value_, get_total_norm
from gradmend.sparse.optim import RowAdagrad, RowAdam


def _refused(error: Exception) -> str:
    fits = isinstance(error, GradmendError | ValueError | TypeError) or "loading state_dict" in str(error)
    assert fits, f"{type(error).__name__}: {error}"
    return "refused"


def linear(m: Maker) -> str:
    r = m.r
    try:
        layer = SparseLinear(r.choice([0, 1, 3, 8, -1, 2.5]), r.choice([1, 4, "x"]), r.choice([0.0, 0.4, 1.0, 2.0]), bias=r.random() < 0.5)  # fmt: skip
        kind = r.choice([torch.float32, torch.float32, torch.float64])
        x = m.strided(m.numbers(*r.choice([(), (2,), (2, 3)]), r.choice([layer.in_features, 5]), dtype=kind))
        out = layer(x)
    except Exception as error:
        return _refused(error)
    check(out.detach(), F.linear(x, dense(layer.weight()).detach(), layer.bias).detach())
    return "equal"


def weight(m: Maker) -> str:
    S = m.sparse(dtype=torch.float32) if m.dtype.is_complex else m.sparse()
    try:
        made = SparseWeight(
            m.r.choice([S.pattern, S.pattern, S]), m.r.choice([None, S.values(), m.argument(S)])
        )
        other = SparseWeight(m.r.choice([S.pattern, m.sparse().pattern]))
        other.load_state_dict(made.state_dict())
    except Exception as error:
        return _refused(error)
    check(other().detach(), dense(made()).detach())
    return "equal"


def _gradients(m: Maker) -> list[Tensor]:
    """Parameters with dense, COO (repeated places too) and CSR gradients, or none."""
    found = []
    for _ in range(m.r.randrange(1, 4)):
        p = nn.Parameter(torch.zeros(5, 3))
        full = m.numbers(5, 3, dtype=torch.float32)
        ids = torch.randint(5, (1, m.r.randrange(6)), generator=m.g)
        rows = torch.sparse_coo_tensor(ids, m.numbers(ids.shape[1], 3, dtype=torch.float32), (5, 3))
        p.grad = m.r.choice([full, rows, None])
        found.append(p)
    return found


def _full(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad.to_dense().clone()


def clip(m: Maker) -> str:
    params = _gradients(m)
    live = [p for p in params if p.grad is not None]
    if not live:
        return "skipped"
    twins = [nn.Parameter(torch.zeros(5, 3)) for _ in live]
    for p, q in zip(live, twins, strict=True):
        q.grad = _full(p)
    bound = m.r.choice([0.5, 1, 100.0, 0.0])
    order = m.r.choice([2.0, 1.0, float("inf")])
    check(
        get_total_norm([p.grad for p in live], order), nn.utils.get_total_norm([q.grad for q in twins], order)
    )
    if m.r.random() < 0.5:
        check(clip_grad_norm_(params, bound, order), nn.utils.clip_grad_norm_(twins, bound, order))
    else:
        clip_grad_value_(params, bound)
        nn.utils.clip_grad_value_(twins, bound)
    check([_full(p) for p in live], [_full(q) for q in twins])
    return "equal"


def optimizer(m: Maker) -> str:
    """Some steps with sparse gradients beside torch's own, which take no weight decay there."""
    kinds: list[tuple[Any, Any]] = [(RowAdam, torch.optim.SparseAdam), (RowAdagrad, torch.optim.Adagrad)]
    ours, theirs = m.r.choice(kinds)
    lr = m.r.choice([0.1, 1e-3, -1.0])
    p, q = (nn.Parameter(torch.ones(9, m.r.choice([4]))) for _ in range(2))
    try:
        a = ours([p], lr=lr)
    except Exception as error:
        return _refused(error)
    b = theirs([q], lr=lr)
    for _ in range(3):
        ids = torch.randint(9, (1, m.r.randrange(1, 7)), generator=m.g)
        grad = torch.sparse_coo_tensor(ids, m.numbers(ids.shape[1], 4, dtype=torch.float32), (9, 4))
        p.grad, q.grad = grad, grad.clone()
        a.step()
        b.step()
    check(p.detach(), q.detach())
    return "equal"


TRAINED = {"nn.SparseLinear": linear, "nn.SparseWeight": weight, "nn.clip": clip, "optim": optimizer}
