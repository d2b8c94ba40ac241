"""Who may have written where no tap can see: functions that TorchScript or torch.compile runs, found in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradmend.model import Frame, Site
from gradmend.story.callees import Function, functions_called, parameter
from gradmend.story.names import op_of
from gradmend.story.source import parse

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPILERS = ("script", "script_if_tracing", "compile")


def compiled_writes(near: Frame, name: str | None) -> list[tuple[Frame, str]]:
    """Lines of compiled functions that write to an argument, which the function around `near` calls, and the calls.

    Each with the name of the compiled function. Calls that are given `name` come first.
    """
    source = parse(near.file)
    if source is None:
        return []
    around = [
        n
        for n in ast.walk(source.tree)
        if isinstance(n, _FUNCTIONS) and n.lineno <= near.line <= (n.end_lineno or 0)
    ]
    inside = around[-1] if around else source.tree
    found: list[tuple[bool, int, list[tuple[Frame, str]]]] = []
    for call in ast.walk(inside):
        if not isinstance(call, ast.Call):
            continue
        for function in functions_called(near.file, source, call):
            if not _compiled(function):
                continue
            keys = [(i, arg) for i, arg in enumerate(call.args)] + [(k.arg, k.value) for k in call.keywords]
            given = {
                p: ast.unparse(arg)
                for key, arg in keys
                if key is not None and (p := parameter(function, key))
            }
            written = dict.fromkeys((line, p) for line, p in _written(function.node) if p in given)
            if written:
                called = function.node.name
                frames = [(Frame(function.file, line, called, "user"), called) for line, _ in written]
                frames.append((Frame(near.file, call.lineno, near.function, "user"), called))
                named = name is not None and any(given[p] == name for _, p in written)
                found.append((not named, abs(call.lineno - near.line), frames))
    return [frame for *_, frames in sorted(found, key=lambda f: f[:2]) for frame in frames]


def _compiled(function: Function) -> bool:
    for decorator in function.node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(called).rpartition(".")[2] in _COMPILERS:
            return True
    return False


def _written(function: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines that write to a name in place, and the name."""
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(attr=attr) as method) if attr.endswith("_") and attr[0] != "_":
                target: ast.expr = method.value
                while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
                    target = target.func.value  # x.mul_(g).add_(1)
                targets = [target]
            case ast.AugAssign(target=target):
                targets = [target]
            case ast.Assign(targets=several):
                targets = [t for t in several if isinstance(t, ast.Subscript)]
            case _:
                continue
        for target in targets:
            while isinstance(target, ast.Subscript):
                target = target.value
            if isinstance(target, ast.Name):
                yield node.lineno, target.id


_WRITTEN_DOWN = "<eval_with_key>"  # Dynamo's graph as Python, which backends such as "eager" run


def placed(site: Site, op: str) -> Site:
    """A compiled function that runs as Python has no line but its first: the one place in it that does `op` is the line."""
    at = next((i for i, f in enumerate(site.frames) if f.owner == "user"), 0)
    if not any(f.file.startswith(_WRITTEN_DOWN) for f in site.frames[:at]):
        return site
    frame = site.frames[at]
    source = parse(frame.file)
    if source is None:
        return site
    done = f"{op[3:-2]}_" if op.startswith("__i") and op.endswith("__") else op
    nodes = [
        node
        for function in ast.walk(source.tree)
        if isinstance(function, _FUNCTIONS) and frame.line == _first_line(function)
        for node in ast.walk(function)
        if op_of(node) == done and isinstance(node, ast.expr | ast.AugAssign)
    ]
    if len(nodes) != 1:
        return site
    (node,) = nodes
    line = Frame(
        frame.file, node.lineno, frame.function, "user", node.col_offset, node.end_lineno, node.end_col_offset
    )
    return Site((line, *site.frames[at + 1 :]))


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])
