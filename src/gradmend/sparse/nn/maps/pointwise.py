"""Layers that see features and not places."""

from __future__ import annotations

from typing import Any

from torch import nn

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
    """nn.Sequential in which plain modules (activations, norms) see the features."""

    def forward(self, input: Any) -> Any:
        for module in self:
            plain = isinstance(input, SparseFeatureMap) and module.__module__.startswith("torch.nn.")
            input = input.with_features(module(input.features)) if plain else module(input)
        return input
