import torch

from gradmend.testing import assert_gradients_safe


def gate(x):
    h = torch.sigmoid(x)
    return h * x


def test_gate():
    assert_gradients_safe(gate, torch.randn(4, requires_grad=True))
