"""Writes src/gradmend/sparse/methods.pyi: what api.attach() puts on SparseTensor, so that editors and type checkers know it.

python tools/make_sparse_stubs.py [--check]
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch.nn.functional as F

from gradmend.sparse import api
from gradmend.sparse.dispatch import METHODS
from gradmend.sparse.ops.elementwise.unary import DENSE_AT_ZERO, KEEPS_ZERO, KEEPS_ZERO_NN
from gradmend.sparse.tensor import SparseTensor

OUT = Path(__file__).parents[1] / "src/gradmend/sparse/methods.pyi"
HEAD = """# Written by tools/make_sparse_stubs.py from the operations themselves. Do not edit.
import builtins
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from gradmend.sparse.tensor import SparseTensor

class Methods:
"""
# Methods are called like types: inside the class a bare `int` would be the method.
_BUILTIN = re.compile(r"(?<![\w.])(int|float|bool|tuple|list|dict|str|type|object)(?!\w)")
# torch's builtins have no signature to read.
_PLAIN_ARGUMENTS = {
    "round": "*, decimals: builtins.int = ...",
    "gelu": "*, approximate: builtins.str = ...",
    "softshrink": "lambd: builtins.float = ...",
    "hardshrink": "lambd: builtins.float = ...",
}


def spelled(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else "Any"
    return _BUILTIN.sub(r"builtins.\1", text)


def parameters(op: Any, names: list[inspect.Parameter]) -> str:
    """As in the signature; the first one is self."""
    made, starred = ["self"], False
    for p in names[1:]:
        if p.name.startswith("_"):
            continue
        kind = spelled(p.annotation)
        default = "" if p.default is inspect.Parameter.empty else " = ..."
        if p.kind is p.VAR_POSITIONAL:
            made.append(f"*{p.name}: {kind}")
            starred = True
        elif p.kind is p.VAR_KEYWORD:
            made.append(f"**{p.name}: {kind}")
        else:
            if p.kind is p.KEYWORD_ONLY and not starred:
                made.append("*")
                starred = True
            made.append(f"{p.name}: {kind}{default}")
    return ", ".join(made)


def method(name: str, op: Any) -> str:
    bare = name.strip("_")
    if bare in DENSE_AT_ZERO or name == "__invert__":
        return f"    def {name}(self, *args: Any, **kwargs: Any) -> NoReturn: ...\n"
    if name in KEEPS_ZERO_NN and name not in _PLAIN_ARGUMENTS:
        torchs_own = inspect.signature(getattr(F, name)).parameters.values()
        told = [p.replace(annotation=_named(p.annotation)) for p in torchs_own]
        return f"    def {name}({parameters(op, told)}) -> SparseTensor: ...\n"
    if name in (*KEEPS_ZERO, *_PLAIN_ARGUMENTS, "__neg__", "__abs__", "__pos__"):
        more = _PLAIN_ARGUMENTS.get(name)
        return f"    def {name}(self{', ' + more if more else ''}) -> SparseTensor: ...\n"
    signature = inspect.signature(op)
    result = spelled(signature.return_annotation)
    names = list(signature.parameters.values())
    if name.startswith("__"):  # Python calls operators by place
        names = names[:2]
    return f"    def {name}({parameters(op, names)}) -> {result}: ...\n"


def _named(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "Any")


def stub() -> str:
    text = HEAD
    own = vars(SparseTensor)
    for name, op in sorted(METHODS.items()):
        if getattr(own.get(name), "__wrapped__", None) is op:
            text += method(name, op)
    for name, make in sorted(api.CONSTRUCTORS.items()):
        rest = parameters(make, [None, *inspect.signature(make).parameters.values()])  # type: ignore[list-item]
        text += f"    @staticmethod\n    def {name}({rest.removeprefix('self, ')}) -> SparseTensor: ...\n"
    return text


def main() -> None:
    made = stub()
    if "--check" in sys.argv:
        if ast.dump(ast.parse(OUT.read_text())) != ast.dump(ast.parse(made)):
            sys.exit(f"{OUT.name} is not what the operations say: run tools/make_sparse_stubs.py")
        return
    OUT.write_text(made)
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(OUT)], check=True)


if __name__ == "__main__":
    main()
