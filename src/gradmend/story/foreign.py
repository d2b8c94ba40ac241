"""Who may have written memory that was handed out beyond torch: numpy writes leave no trace, but source does.

From the line where an array met a tensor (`torch.from_numpy(self.ids)`, `a = t.numpy()`) the array's name is
known; the lines in that file which write to that name in place are the suspects, nearest first.
"""

from __future__ import annotations

import ast

from gradmend.model import Frame, Site
from gradmend.story.source import parse, running

_WRITERS = frozenset("fill sort partition put itemset setfield resize setflags byteswap shuffle".split())
_FIRST_ARGUMENT = frozenset("copyto put place putmask shuffle fill_diagonal put_along_axis".split())


def foreign_writes(escape: Site) -> list[Frame]:
    """Lines that write in place to the array of the escape, nearest to it first."""
    frame = escape.user
    if frame is None:
        return []
    source = parse(frame.file)
    if source is None:
        return []
    names = _array_names(source.tree, running(source, frame), frame.line)
    if not names:
        return []
    lines = sorted(
        {node.lineno for node in ast.walk(source.tree) if _written(node) & names},  # type: ignore[attr-defined]
        key=lambda line: abs(line - frame.line),
    )
    return [Frame(frame.file, line, _function_at(source.tree, line), "user") for line in lines]


def _array_names(tree: ast.Module, node: ast.AST | None, line: int) -> set[str]:
    names: set[str] = set()
    calls = [node] if isinstance(node, ast.Call) else []
    if not calls:
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and n.lineno == line]
    for call in calls:
        for arg in call.args[:1]:
            names |= (
                {ast.unparse(arg)} if isinstance(arg, ast.Name | ast.Attribute | ast.Subscript) else set()
            )
        # `a = t.numpy()`: the array goes by the name it is given.
        for statement in ast.walk(tree):
            if isinstance(statement, ast.Assign) and any(n is call for n in ast.walk(statement.value)):
                names |= {
                    ast.unparse(t) for t in statement.targets if isinstance(t, ast.Name | ast.Attribute)
                }
    # `self.ids` of one method may be `sampler.ids` elsewhere: the attribute is what stays.
    return names | {f".{n.rpartition('.')[2]}" for n in names if "." in n}


def _spelled(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return {ast.unparse(node), f".{node.attr}"}
    return {node.id} if isinstance(node, ast.Name) else set()


def _written(node: ast.AST) -> set[str]:
    """The names that this node writes to in place."""
    match node:
        case ast.Assign(targets=targets):
            return set().union(*(_spelled(t) for t in targets if isinstance(t, ast.Subscript)))
        case ast.AugAssign(target=target):
            return _spelled(target)
        case ast.Call(func=ast.Attribute(value=value, attr=attr), args=args, keywords=keywords):
            found = set()
            if attr in _WRITERS:
                found |= _spelled(value)
            if attr in _FIRST_ARGUMENT and args:
                found |= _spelled(args[0])
            for keyword in keywords:
                if keyword.arg == "out":
                    found |= _spelled(keyword.value)
            return found
    return set()


def _function_at(tree: ast.Module, line: int) -> str:
    inner = "<module>"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (
            node.end_lineno or 0
        ):
            inner = node.name
    return inner
