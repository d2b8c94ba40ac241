"""PyTorch's version mismatch, read from its message: which kind of tensor, whose output, which versions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gradmend.story.knowledge import Knowledge, by_node

_MISMATCH = re.compile(
    r"modified by an inplace operation: \[(?P<type>[\w.]+) \[(?P<shape>[^\]]*)\]\]"
    r"(?:, which is output (?P<output>\d+) of (?:struct )?(?P<node>[^,\[\]]+),)?"
    r" is at version (?P<version>\d+); expected version (?P<expected>\d+) instead"
)
_HEADLESS = re.compile(r"modified by an inplace operation")
_TYPE = re.compile(
    r"(?P<kind>ComplexFloat|ComplexDouble|ComplexHalf|BFloat16|Float|Double|Half|Long|Int|Short|Char|Byte|Bool)"
    r"(?:Tensor|Type)$"
)
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}


@dataclass(frozen=True)
class Mismatch:
    """What the message says of the tensor that changed."""

    shape: tuple[int, ...]
    dtype: str  # "float32"; empty where the type's name is unknown
    device: str  # "cpu", "cuda", ...
    node: str  # "Relu": the node that made it, as autograd has it now; empty for a leaf or a constant
    output: int
    version: int
    expected: int

    @property
    def steps(self) -> int:
        return self.version - self.expected

    @property
    def is_index(self) -> bool:
        return self.dtype.startswith(("int", "uint", "bool"))

    def __str__(self) -> str:
        return f"{self.dtype or 'tensor'}{list(self.shape)}"


def is_mismatch(text: str) -> bool:
    return _HEADLESS.search(text) is not None


def read(text: str) -> Mismatch | None:
    """The facts in the message, or None where it has none (or is cut off)."""
    # People paste it with quote marks and code fences in between.
    found = _MISMATCH.search(" ".join(re.sub(r"[`>*]", " ", text).split()))
    if found is None:
        return None
    kind = _TYPE.search(found["type"])
    dims = [d.strip() for d in found["shape"].split(",") if d.strip()]
    if not all(d.isdigit() for d in dims):
        return None
    return Mismatch(
        shape=tuple(int(d) for d in dims),
        dtype=_DTYPES[kind["kind"]] if kind else "",
        device=_device(found["type"]),
        node=bare(found["node"] or ""),
        output=int(found["output"] or 0),
        version=int(found["version"]),
        expected=int(found["expected"]),
    )


def _device(type_name: str) -> str:
    """ "torch.cuda.FloatTensor" and "CUDABFloat16Type" -> "cuda"."""
    name = type_name.lower()
    return next((d for d in ("cuda", "mps", "xla", "xpu", "hpu", "meta", "sparse") if d in name), "cpu")


def bare(node: str) -> str:
    """ "torch::autograd::ExpBackward0" -> "Exp": PyTorch 2.13 says Exp, earlier ones ExpBackward0."""
    return re.sub(r"Backward\d*$", "", node.rpartition("::")[2])


def knowledge_of(node: str) -> Knowledge | None:
    """What is known of the op behind a node, by either spelling; None for custom Functions and the like."""
    name = bare(node)
    for candidate in (node, *(f"{name}Backward{n}" for n in range(3))):
        found = by_node(candidate)
        if found.known:
            return found
    return None


def op_from_node(node: str) -> str:
    """ "ExpBackward0" -> "exp"; a custom Function keeps its own name."""
    known = knowledge_of(node)
    return known.op if known is not None else bare(node)
