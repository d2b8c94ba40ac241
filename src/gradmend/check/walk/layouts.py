"""Basic slices that are known from the source: do two of one tensor overlap in part?"""

from __future__ import annotations

import ast
from typing import Any


def overlap_in_part(written: ast.expr, read: ast.expr) -> bool:
    """`x[1:]` and `x[:-1]`: the same tensor by the same words, other elements of it, and some in common."""
    if not (isinstance(written, ast.Subscript) and isinstance(read, ast.Subscript)):
        return False
    if ast.dump(_plain(written.value)) != ast.dump(_plain(read.value)) or not _is_name(written.value):
        return False
    a, b = _parts(written.slice), _parts(read.slice)
    if len(a) != len(b):
        return False
    shifted = False
    for one, other in zip(a, b, strict=True):
        if ast.dump(_plain(one)) == ast.dump(_plain(other)):
            continue
        if shifted or not _shifted(one, other):
            return False
        shifted = True
    return shifted


def _shifted(one: ast.expr, other: ast.expr) -> bool:
    """`1:` and `:-1`, `2:` and `:-2`: as long as each other, and moved by less than they are long in most tensors."""
    if not (isinstance(one, ast.Slice) and isinstance(other, ast.Slice)) or one.step or other.step:
        return False
    first, last = (one, other) if one.upper is None else (other, one)
    if first.upper is not None or last.lower is not None or first.lower is None or last.upper is None:
        return False
    start, end = _number(first.lower), _number(last.upper)
    return start is not None and end is not None and start > 0 and end == -start


def _number(node: ast.expr) -> int | None:
    try:
        value: Any = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None
    return value if type(value) is int else None


def _parts(at: ast.expr) -> list[ast.expr]:
    return list(at.elts) if isinstance(at, ast.Tuple) else [at]


def _is_name(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _plain(node: ast.AST) -> ast.AST:
    """The same names, whether they are read or written."""
    if isinstance(node, ast.Name):
        return ast.Name(node.id, ast.Load())
    if isinstance(node, ast.Attribute):
        return ast.Attribute(_plain(node.value), node.attr, ast.Load())  # type: ignore[arg-type]
    return node
