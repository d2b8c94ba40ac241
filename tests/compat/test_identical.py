"""Programs without conflicts give the same bits with and without Gradmend: losses, gradients, RNG state."""

import contextlib

import pytest
import torch
from models import PROGRAMS, same

import gradmend


@contextlib.contextmanager
def installed():
    gradmend.install()
    try:
        yield
    finally:
        gradmend.uninstall()


CONTEXTS = {
    "install": installed,
    "watch": gradmend.watch,
    "watch-paranoid": lambda: gradmend.watch(paranoid=True),
    "heal": gradmend.heal,
}


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_same_bits(program, context):
    plain = program()
    with context():
        ours = program()
    same(plain, ours)
    same(program(), plain)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_nothing_is_told_of_them(program):
    with gradmend.watch() as session:
        program()
    assert [c.message for c in session.conflicts if c.kind != "refused-but-right"] == []
    assert session.outcome == "clean"


def test_the_comparison_can_fail():
    with pytest.raises(AssertionError):
        same([torch.tensor(0.0)], [torch.tensor(-0.0)])
