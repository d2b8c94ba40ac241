"""methods.pyi says what SparseTensor has: editors complete it, type checkers find misspelt names."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from gradmend.sparse import SparseTensor, api
from gradmend.sparse.dispatch import METHODS

ROOT = Path(__file__).parents[2]
STUB = ROOT / "src/gradmend/sparse/methods.pyi"


def _tool() -> Any:
    spec = importlib.util.spec_from_file_location("make_sparse_stubs", ROOT / "tools/make_sparse_stubs.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="torch's own signatures are those of 2.13"
)
def test_the_stub_is_what_the_tool_writes() -> None:
    assert ast.dump(ast.parse(STUB.read_text())) == ast.dump(ast.parse(_tool().stub()))


def test_every_method_is_in_the_stub() -> None:
    (body,) = [node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ClassDef)]
    told = {node.name for node in body.body if isinstance(node, ast.FunctionDef)}
    attached = {n for n, op in METHODS.items() if getattr(vars(SparseTensor)[n], "__wrapped__", None) is op}
    assert told == attached | set(api.CONSTRUCTORS)
