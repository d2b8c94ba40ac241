"""derivatives.yaml of the installed torch, read as PyTorch's own code generator reads it.

torchgen has a loader, which takes seconds because it parses every native function as well; the tests hold this
one, which takes a twentieth of a second, against it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Formula:
    """How the gradient of these inputs is computed, in ATen's C++, and the tensors that it reads."""

    inputs: tuple[str, ...]
    text: str
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One overload of one op, as derivatives.yaml has it."""

    op: str  # "exp"
    overload: str  # "Tensor", or ""
    schema: str
    node: str | None  # "ExpBackward0"; None where nothing is differentiable
    tensors: tuple[str, ...]  # its tensor arguments
    results: tuple[str, ...]  # its tensor results: "result", or "result0", "result1", or their own names
    formulas: tuple[Formula, ...]
    key: str = "Default"  # or the one dispatch key it is for
    composite: bool = False  # on ordinary tensors the op is made of others, and this entry is not used

    @property
    def keeps(self) -> tuple[str, ...]:
        kept = {name for f in self.formulas for name in f.reads}
        return tuple(name for name in (*self.tensors, *self.results) if name in kept)

    def readers(self, slot: str) -> tuple[Formula, ...]:
        return tuple(f for f in self.formulas if slot in f.reads)

    @property
    def qualified(self) -> str:
        return f"{self.op}.{self.overload}" if self.overload else self.op


def path() -> Path:
    spec = find_spec("torchgen")  # it comes with torch; found, not imported
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the installed torch has no torchgen, so no derivatives.yaml can be read")
    return Path(spec.origin).parent / "packaged/autograd/derivatives.yaml"


@cache
def entries() -> tuple[Entry, ...]:
    return tuple(_load(path().read_text(encoding="utf-8")))


def _load(text: str) -> Iterator[Entry]:
    import yaml

    definitions: list[dict[str, Any]] | None = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return _read(definitions or [])


@cache
def by_op() -> dict[str, tuple[Entry, ...]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries():
        found.setdefault(entry.op, []).append(entry)
    return {op: tuple(group) for op, group in found.items()}


@cache
def at_node(node: str) -> Entry | None:
    """The entry behind "ExpBackward0". Only the definitions that could be meant are read: a story waits for it."""
    stem = node[: node.rfind("Backward") + len("Backward")]
    return next((entry for entry in _load("".join(_texts().get(stem, ()))) if entry.node == node), None)


@cache
def _texts() -> dict[str, list[str]]:
    """The definitions whose nodes are numbered together, unread, in the order of the file."""
    found: dict[str, list[str]] = {}
    for text in re.split(r"(?m)^(?=- name:)", path().read_text(encoding="utf-8"))[1:]:
        op = text.removeprefix("- name:").split("(", 1)[0].split(".", 1)[0].strip()
        found.setdefault(_node_prefix(op), []).append(text)
    return found


def _read(definitions: list[dict[str, Any]]) -> Iterator[Entry]:
    import torch

    numbers: Counter[str] = Counter()
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key
    for definition in definitions:
        schema = torch._C.parse_schema(f"aten::{definition['name']}")
        op, overload = schema.name.removeprefix("aten::"), schema.overload_name
        arguments = [a.name for a in schema.arguments]
        tensors = tuple(a.name for a in schema.arguments if "Tensor" in str(a.type))
        results = _result_names(schema)
        try:
            composite = is_composite(
                f"aten::{op}.{overload}" if overload else f"aten::{op}", "CompositeImplicitAutograd"
            )
        except RuntimeError:  # not in this build
            composite = False
        for key, lines in definition.get("dispatch", {"Default": definition}).items():
            formulas = tuple(_formulas(lines, arguments, (*tensors, *results)))
            node = None
            if formulas:
                prefix = _node_prefix(op) + ("" if key == "Default" else key)
                node = f"{prefix}{numbers[prefix]}"
                numbers[prefix] += 1
            yield Entry(op, overload, definition["name"], node, tensors, results, formulas, key, composite)


def _result_names(schema: Any) -> tuple[str, ...]:
    returns = schema.returns
    taken = {a.name for a in schema.arguments}
    if len(returns) == 1 and (not returns[0].name or returns[0].name == "self"):
        return ("result",)
    names = (r.name or f"result{i}" for i, r in enumerate(returns) if "Tensor" in str(r.type))
    return tuple(f"{name}_return" if name in taken else name for name in names)


def _formulas(lines: dict[str, Any], arguments: list[str], tensors: tuple[str, ...]) -> Iterator[Formula]:
    # The generator numbers nodes and orders formulas by sorted keys; so do we.
    for key in sorted(k for k in lines if k not in ("name", "output_differentiability", "dispatch")):
        inputs = tuple(name.strip() for name in key.split(","))
        if not all(name in arguments for name in inputs):
            continue  # a forward-mode derivative: keyed by a result
        text = " ".join(str(lines[key]).split())
        if text.lower() != "non_differentiable":
            yield Formula(inputs, text, tuple(_reads(text, tensors)))


# What the generator works out at save time, so that the tensor itself need not be kept.
_METADATA = re.compile(
    r"\b\w+(?:\.|->)(?:sym_sizes|sym_blocksize|options|numel|sym_numel|scalar_type|dim|sym_strides|layout|is_conj)\(\)"
    r"|\b\w+\.sym_size\(-?\w+\)|(?:zeros_like|to_args_sizes|to_args_sizes_symint|to_args_scalartypes|TensorGeometry)\(\w+\)"
)
_WORD = re.compile(r"\w+")


def _reads(text: str, tensors: tuple[str, ...]) -> Iterator[str]:
    words = set(_WORD.findall(_METADATA.sub("", text)))
    return (name for name in tensors if name in words)


def _node_prefix(op: str) -> str:
    camel = "".join(part.title() for part in op.split("_"))
    return f"{camel}Backward".replace("ForwardBackward", "Backward")
