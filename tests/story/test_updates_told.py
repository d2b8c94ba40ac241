"""A parameter written between its use and backward is told as that, also where a view of it was kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import gradmend
from gradmend.story.advice import advised


def loaded(layer: torch.nn.Linear) -> None:
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()})


def added(layer: torch.nn.Linear) -> None:
    with torch.no_grad():
        layer.weight.add_(1)


def drawn(layer: torch.nn.Linear) -> None:
    torch.nn.init.normal_(layer.weight)


def reset(layer: torch.nn.Linear) -> None:
    layer.reset_parameters()


@pytest.mark.parametrize("update", [loaded, added, drawn, reset])
def test_a_linear_layers_weight(update: Callable[[torch.nn.Linear], None]) -> None:
    layer, x = torch.nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        loss = layer(x).square().sum()
        update(layer)
        loss.backward()
    conflict = caught.value.conflict
    assert conflict.rule == "GM105" and "`layer.weight` as line" in conflict.message
    assert advised(conflict).help[0].startswith(("move line", "do the update after the last backward()"))
    assert conflict.saved is not None and conflict.saved.tensor.name == "layer.weight"


def test_what_was_computed_from_a_parameter_is_no_parameter() -> None:
    weight, x = torch.nn.Parameter(torch.ones(3, 3)), torch.ones(2, 3)
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        scaled = weight * 2
        loss = torch.nn.functional.linear(x, scaled).exp().sum() + (scaled.t() @ scaled).sum()
        scaled.zero_()
        loss.backward()
    assert caught.value.conflict.rule == "GM102"


def test_lines_of_two_files_are_told_with_their_files() -> None:
    words: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    exec(compile("def scale(t):\n    return t.mul_(3)\n", "/program/ops.py", "exec"), words)
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        y = torch.ones(3, requires_grad=True).exp()
        words["scale"](y)
        y.sum().backward()
    here = Path(__file__).name
    assert caught.value.conflict.message.startswith("ops.py line 2 changes `y` in place, but backward() on")
    assert caught.value.conflict.message.count(f"{here} line") == 2


def test_weights_in_one_flat_tensor_go_by_their_own_names() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    for p, piece in zip(net.parameters(), flat.split([p.numel() for p in net.parameters()]), strict=True):
        p.data = piece.view_as(p)
    with gradmend.watch(), pytest.raises(gradmend.ConflictError) as caught:
        loss = net(torch.ones(2, 3)).square().sum()
        flat *= 0.5
        loss.backward()
    saved = caught.value.conflict.saved
    assert saved is not None and saved.tensor.name == "net.1.weight"
