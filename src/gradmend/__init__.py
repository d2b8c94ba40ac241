"""Gradmend mends PyTorch gradients."""

__version__ = "0.1.0"
