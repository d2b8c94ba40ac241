"""Layers that see features and not places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradmend.sparse.errors import SparseError
from gradmend.sparse.nn.maps.feature_map import SparseFeatureMap


class OnFeatures(nn.Module):
    """Any module on the rows of features: `OnFeatures(nn.ReLU())`, `OnFeatures(nn.Linear(32, 10))`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: SparseFeatureMap) -> SparseFeatureMap:
        return x.with_features(self.module(x.features))


class MapBatchNorm(nn.BatchNorm1d):
    """Batch norm over the places that have features; parameters and state are torch's BatchNorm's."""

    def forward(self, input: Any) -> Any:
        return input.with_features(super().forward(input.features))


class MapDropout(nn.Dropout):
    """Dropout of features; places stay."""

    def forward(self, input: Any) -> Any:
        return input.with_features(super().forward(input.features))


class MapSequential(nn.Sequential):
    """nn.Sequential in which plain modules (activations, norms) see the features.

    So it is in an nn.Sequential inside of it, and for modules that are parametrized (weight_norm) or sharded.
    """

    def forward(self, input: Any) -> Any:
        return _through(self, input)


def _through(modules: nn.Sequential, x: Any) -> Any:
    for module in modules:
        if not isinstance(x, SparseFeatureMap) or not _plain(module):
            x = module(x)
        elif isinstance(module, nn.Sequential) and not all(_plain(inner) for inner in _leaves(module)):
            if module._forward_hooks or module._forward_pre_hooks:
                raise SparseError(
                    "an nn.Sequential with layers for feature maps is gone through one by one, and its own hooks would "
                    "not be called: make it a MapSequential."
                )
            x = _through(module, x)
        else:
            x = x.with_features(module(x.features))
    return x


def _plain(module: nn.Module) -> bool:
    """A module of torch.nn: it knows nothing of places."""
    while (inner := _inside(module)) is not None:
        module = inner
    for kind in type(module).__mro__:
        # Classes that parametrize and fully_shard make for one module come before the class that somebody wrote.
        if not kind.__module__.startswith(("torch.nn.utils.parametrize", "torch.distributed.")):
            return kind.__module__.startswith("torch.nn.")
    return False


def _inside(module: nn.Module) -> nn.Module | None:
    """What DistributedDataParallel and torch.compile have wrapped."""
    found = (
        module.module if isinstance(module, DistributedDataParallel) else getattr(module, "_orig_mod", None)
    )
    return found if isinstance(found, nn.Module) else None


def _leaves(module: nn.Sequential) -> Iterator[nn.Module]:
    for inner in module:
        if isinstance(inner, nn.Sequential) and _plain(inner):
            yield from _leaves(inner)
        else:
            yield inner
