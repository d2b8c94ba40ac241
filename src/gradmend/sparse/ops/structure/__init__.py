"""Entries moved, chosen and put together; their numbers stay."""
