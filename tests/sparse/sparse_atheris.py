"""The fuzzer led by coverage, where atheris installs (it is no dependency; Linux and macOS only):

    pip install atheris
    python tests/sparse/sparse_atheris.py -runs=20000

atheris chooses the bytes, by which lines of gradmend.sparse they reach; each is a name and a seed of sparse_fuzz.py.
"""

from __future__ import annotations

import sys
import warnings

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["gradmend.sparse"]):
    import sparse_fuzz
    import torch
    from sparse_guards import arm


def one(data: bytes) -> None:
    given = atheris.FuzzedDataProvider(data)
    name = sparse_fuzz.NAMES[given.ConsumeIntInRange(0, len(sparse_fuzz.NAMES) - 1)]
    sparse_fuzz.one_call(name, given.ConsumeIntInRange(0, 2**32 - 1))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    arm()
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
