"""Copies, dtypes, devices, dense tensors, torch's own layouts."""
