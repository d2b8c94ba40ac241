"""Names that the taps look for by hand and that this torch does not have, and writing methods that no tap is on."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gradmend.capture.taps import homes, special
from gradmend.capture.taps.schemas import METADATA, UNDERSTATED, writing_ops

# They end as writers do, and write nothing: hooks, names, flags.
_HARMLESS = frozenset(
    "requires_grad_ retain_grad share_memory_ rename_ refine_names_ is_shared_ align_to_".split()
)


def missing() -> list[str]:
    return sorted(set(_gone()) | set(_untapped()))


def _gone() -> Iterator[str]:
    """Looked for by name, and not there."""
    for name in (*homes.OPERATORS, *homes.UNSCHEMED_METHODS):
        if not hasattr(torch.Tensor, name) and name != "__idiv__":  # of Python 2; older releases have it
            yield f"Tensor.{name}"
    yield from (f"aten.{op}" for op in UNDERSTATED if op not in writing_ops())
    for owner, name in special.wanted():
        if not hasattr(owner, name):
            yield f"{getattr(owner, '__name__', owner)}.{name}"


def _untapped() -> Iterator[str]:
    """Methods whose name says that they write, and that no schema and no list of ours tells of."""
    tapped = {patch.name for patch in homes.patches() if patch.owner is torch.Tensor}
    for name in dir(torch.Tensor):
        writes = name.endswith("_") and not name.startswith("_")
        if writes and name not in tapped | METADATA | _HARMLESS:
            yield f"Tensor.{name}"
