"""Memory handed out beyond torch: noted on the storage, and from then on watched by fingerprint."""

from __future__ import annotations

import torch

from gradmend.capture.regions import physical
from gradmend.capture.sites import Raw, raw_here

_MARK = "_gradmend_escape"
_known = False


def any_known() -> bool:
    return _known


def note(storage: torch.UntypedStorage, how: str) -> Raw:
    """Remember the line that handed this memory out (the first one stays)."""
    global _known
    _known = True
    site: Raw | None = getattr(storage, _MARK, None)
    if site is None:
        site = raw_here(3)
        setattr(storage, _MARK, site)
    return site


def of(storage: torch.UntypedStorage) -> Raw | None:
    """Where the memory was handed out; an empty site where it was born outside torch before we looked."""
    site: Raw | None = getattr(storage, _MARK, None)
    if site is None and not storage.resizable():
        return ()
    return site


def fingerprint(t: torch.Tensor) -> int:
    """A hash of the tensor's bytes that sees permutations and balanced changes."""
    import xxhash

    t = physical(t.detach())
    if t.numel() == 0:
        return 0
    if not t.is_contiguous():
        t = t.contiguous()
    flat = t.reshape(-1).view(torch.uint8)
    if flat.device.type != "cpu":
        flat = flat.cpu()
    # numpy's own buffer, not Tensor.numpy: that name may be tapped.
    return int(xxhash.xxh3_64_intdigest(memoryview(torch._C.TensorBase.numpy(flat))))  # type: ignore[attr-defined]
