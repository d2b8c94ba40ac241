"""The releases of torch on which the whole suite passes: `make test-matrix` says so, in docs/versions.md."""

from __future__ import annotations

TESTED = ("2.13", "2.14", "2.15")


def release(version: str) -> str:
    """2.13 of 2.13.0+cpu."""
    return ".".join(version.split(".")[:2])


def is_tested(version: str) -> bool:
    """A release, or a repair of one. A nightly build goes by the next release's number, and nobody has tried it."""
    public = version.partition("+")[0]
    return release(public) in TESTED and public.replace(".", "").isdigit()
