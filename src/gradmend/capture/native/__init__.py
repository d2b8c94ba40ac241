"""The edge in C, and what was compiled: loading.py chooses."""
