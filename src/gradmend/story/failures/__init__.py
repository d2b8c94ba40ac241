"""PyTorch's own errors of this family, told by the line that caused them.

`diagnose` takes an exception and what was recorded before it; `explain` takes an exception or its printed text.
"""
