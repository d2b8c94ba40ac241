"""The shipped table against the installed torch: PyTorch itself refuses just the writes that the table says it will."""

from __future__ import annotations

import inspect

import pytest
import torch

from gradmend.check import hover, table
from gradmend.check.walk.flags import FUNCTIONS, MODULES

UNARY = """
abs acos asin atan ceil cos cosh erf erfinv exp exp2 expm1 floor lgamma log log10 log1p log2 neg reciprocal relu rsqrt sigmoid
sign sin sinh sqrt square tan tanh trunc digamma sinc logit
""".split()


def refused(name: str, write_input: bool) -> bool:
    leaf = torch.full((3,), 0.3, dtype=torch.float64, requires_grad=True)
    x = leaf * 1
    y = getattr(x, name)()
    (x if write_input else y).add_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return False


@pytest.mark.parametrize("name", UNARY)
def test_what_an_op_keeps(name: str) -> None:
    info = table.op(name)
    assert info is not None
    assert info.keeps_result == refused(name, write_input=False)
    assert ("self" in info.keeps) == refused(name, write_input=True)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [("mul", True, True), ("div", True, True), ("add", False, False), ("matmul", True, True)],
)
def test_products_keep_both_and_sums_neither(name: str, one: bool, other: bool) -> None:
    info = table.op(name)
    assert info is not None
    assert ("self" in info.keeps, "other" in info.keeps) == (one, other)


@pytest.mark.parametrize(
    ("name", "view"),
    [("unbind", "many"), ("chunk", "many"), ("view", "one"), ("t", "one"), ("clone", ""), ("exp", "")],
)
def test_views(name: str, view: str) -> None:
    info = table.op(name)
    assert info is not None and info.view == view


def test_the_names_that_people_write() -> None:
    for name in (
        "linear",
        "conv2d",
        "softmax",
        "cross_entropy",
        "layer_norm",
        "embedding",
        "gelu",
        "masked_fill",
        "gather",
    ):
        assert table.op(name) is not None, name


def test_inplace_names() -> None:
    assert all(map(table.is_inplace, ("add_", "relu_", "masked_fill_", "copy_", "leaky_relu_")))
    assert not any(map(table.is_inplace, ("add", "requires_grad_", "__iadd__", "_private_", "my_method_")))


def test_hover() -> None:
    assert "keeps its result" in (hover.about("sigmoid") or "")
    assert "keeps its result" in (hover.about("LeakyReLU_") or hover.about("leaky_relu_") or "")
    assert "none of its tensors" in (hover.about("add") or "")
    assert hover.about("whatever") is None
    assert hover.word_at("y = torch.exp(x)", 12) == "exp"


@pytest.mark.parametrize(("home", "told"), [(torch.nn.functional, FUNCTIONS), (torch.nn, MODULES)])
def test_where_the_inplace_flag_stands(home: object, told: dict[str, int]) -> None:
    places = {}
    for name, value in vars(home).items():
        if not name.startswith("_") and (inspect.isfunction(value) or inspect.isclass(value)):
            try:
                words = list(inspect.signature(value).parameters)
            except ValueError:  # of C
                continue
            if "inplace" in words:
                places[name] = words.index("inplace")
    assert places == told
