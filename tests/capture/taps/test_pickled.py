"""A model that holds torch's functions is saved while the taps are on, and after that, as PyTorch alone would."""

from __future__ import annotations

import copy
import copyreg
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradmend
from gradmend.capture.native import loading

NAMES = ["gelu", "linear", "softplus", "elu_", "hardtanh_", "leaky_relu_"]


class Model(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.function = getattr(F, name)
        self.other = torch.sigmoid


def _again(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_made_before(name: str, context: Callable[[], Any]) -> None:
    plain, before = getattr(F, name), Model(name)
    with context():
        inside = _again(before)
    assert before.function is plain and inside.layer.weight.equal(before.layer.weight)
    assert _again(before).function is plain


@pytest.mark.parametrize("name", NAMES)
def test_a_model_made_inside(name: str) -> None:
    plain = pickle.dumps(getattr(F, name))
    with gradmend.watch():
        model = Model(name)
        assert _again(model).function is getattr(F, name)
        assert loading.edge is None or pickle.dumps(model.function) == plain
    if loading.edge is not None:  # a function that Python made is found by its name alone
        assert _again(model).function is getattr(F, name)
        assert _again(model).other is torch.sigmoid


def test_plain_python_loads_it(tmp_path: Path) -> None:
    gelu = F.gelu
    with gradmend.watch():
        (tmp_path / "gelu").write_bytes(pickle.dumps([gelu, len, torch.sigmoid]))
    program = (
        "import pickle, sys, torch; "
        f"found = pickle.load(open({str(tmp_path / 'gelu')!r}, 'rb')); "
        "assert found == [torch.nn.functional.gelu, len, torch.sigmoid], found; assert 'gradmend' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_programs_own_way_with_builtins_stays() -> None:
    def own(builtin: Any) -> Any:
        return builtin.__reduce_ex__(2)

    copyreg.dispatch_table[BuiltinFunctionType] = own
    try:
        with gradmend.watch():
            assert pickle.loads(pickle.dumps(len)) is len
        assert copyreg.dispatch_table[BuiltinFunctionType] is own
        del copyreg.dispatch_table[BuiltinFunctionType]
        with gradmend.watch():
            copyreg.dispatch_table[BuiltinFunctionType] = own
        assert copyreg.dispatch_table[BuiltinFunctionType] is own
    finally:
        copyreg.dispatch_table.pop(BuiltinFunctionType, None)


def test_what_answers_for_torch_can_be_copied() -> None:
    with gradmend.watch():
        assert copy.copy(torch._VF.vf).lstm is torch._VF.lstm
