"""Programs whose nodes the op database does not reach, or not with the flags that matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Program = tuple[Callable[[], Any], list[torch.Tensor]]


def _of(module: nn.Module, *shape: int, dtype: torch.dtype = torch.float32) -> Program:
    module.to(dtype)
    x = torch.randn(*shape, dtype=dtype, requires_grad=True)
    return lambda: module(x), [x, *module.parameters()]


def batch_norm_train() -> Program:
    return _of(nn.BatchNorm1d(3), 5, 3)


def batch_norm_train_without_weights() -> Program:
    return _of(nn.BatchNorm2d(3, affine=False), 2, 3, 4, 4)


def batch_norm_eval() -> Program:
    return _of(nn.BatchNorm1d(3).eval(), 5, 3)


def instance_norm_train() -> Program:
    return _of(nn.InstanceNorm1d(3, affine=True, track_running_stats=True), 2, 3, 5)


def lstm() -> Program:
    return _of(nn.LSTM(3, 4), 5, 2, 3)


def lstm_double() -> Program:
    return _of(nn.LSTM(3, 4), 5, 2, 3, dtype=torch.float64)


def gru() -> Program:
    return _of(nn.GRU(3, 4, num_layers=2), 5, 2, 3)


def attention() -> Program:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8, requires_grad=True)
    return lambda: layer(x, x, x)[0], [x, *layer.parameters()]


PROGRAMS: list[Callable[[], Program]] = [
    batch_norm_train,
    batch_norm_train_without_weights,
    batch_norm_eval,
    instance_norm_train,
    lstm,
    lstm_double,
    gru,
    attention,
]
