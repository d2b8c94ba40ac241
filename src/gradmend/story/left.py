"""Who may have written after watch() or heal() was left: no tap was on, but the source has the lines in between."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradmend.model import Frame, Site
from gradmend.story.source import Source, parse

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SAME_MEMORY = frozenset({"data", "T", "mT", "real", "imag"})


def writes_after(left: Site, backward: Frame | None, name: str | None, leaf: bool) -> list[Frame]:
    """Lines between the end of the context and the backward() that write `name` in place; a `step()`, where it is a parameter."""
    source = parse(backward.file) if backward is not None else None
    if backward is None or source is None:
        return []
    inside = _function_at(source, backward.line)
    ends = [
        _end(source, frame.line)
        for frame in left.users
        if frame.file == backward.file and _function_at(source, frame.line) is inside
    ]
    if not ends:
        return []
    found = {
        node.lineno: None
        for node in ast.walk(inside)
        if isinstance(node, ast.stmt | ast.expr)
        and ends[0] < node.lineno < backward.line
        and any(_is_meant(target, name, leaf) for target in _written(node))
    }
    return [Frame(backward.file, line, backward.function) for line in sorted(found)]


def _function_at(source: Source, line: int) -> ast.AST:
    around = [
        n
        for n in ast.walk(source.tree)
        if isinstance(n, _FUNCTIONS) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    return around[-1] if around else source.tree


def _end(source: Source, line: int) -> int:
    """The last line of the `with` that begins on this one, or this one: the call of a function that has it."""
    blocks = [n for n in ast.walk(source.tree) if isinstance(n, ast.With) and n.lineno == line]
    return max((n.end_lineno or line for n in blocks), default=line)


def _written(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.AugAssign(target=target):
            yield target
        case ast.Assign(targets=targets):
            yield from (t for t in targets if isinstance(t, ast.Subscript) or _sets_data(t))
        case ast.Call(func=func, keywords=keywords):
            yield from (k.value for k in keywords if k.arg == "out")
            if isinstance(func, ast.Attribute) and func.attr == "step":
                yield func
            elif isinstance(func, ast.Attribute) and func.attr.endswith("_"):
                yield func.value


def _sets_data(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "data"


def _is_meant(target: ast.expr, name: str | None, leaf: bool) -> bool:
    if isinstance(target, ast.Attribute) and target.attr == "step":
        return leaf
    try:
        return name is not None and _root(target) == _root(ast.parse(name, mode="eval").body)
    except SyntaxError:
        return False


def _root(node: ast.expr) -> str:
    """`h` of `h[0].data.view(-1)`, `self.h` of `self.h[0]`."""
    while True:
        match node:
            case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner)):
                node = inner
            case ast.Attribute(value=inner, attr=attr) if attr in _SAME_MEMORY:
                node = inner
            case _:
                return ast.unparse(node)
