"""The line that writes in place, written out of place: what a finding's help tells the reader to type."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from gradmend.check import table

_LONGEST = 72  # of what is shown; a longer line is clearer in the file than in a message
# Methods whose name without the underscore is missing, or does something else; tests ask torch.
_NO_TWIN = table.OVERWRITES | {"bernoulli_", "random_"}
_FACTS = frozenset({"shape", "size", "dtype", "device", "ndim", "dim", "numel", "requires_grad"})
_FRESH = {"zero_": "torch.zeros_like({})", "fill_": "torch.full_like({}, {})"}


@dataclass(frozen=True, slots=True)
class Instead:
    line: str = ""  # `y = y + 1`
    clone: str = ""  # `y = y.clone()`, to stand before the line
    part: bool = False  # the line writes to a part of what would be cloned: `y[0] = 1`


UNKNOWN = Instead()


def instead(statement: ast.stmt | None, site: ast.AST) -> Instead:
    """Of the statement, where it is the write itself; else of the call inside of it."""
    if isinstance(statement, ast.AugAssign):
        if not _dotted(statement.target):
            return _cloned(statement.target)
        value = ast.BinOp(statement.target, statement.op, statement.value)
        return Instead(_assigned(statement.target, value), _clone(statement.target))
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and site is statement:
        return _cloned(statement.targets[0])
    if not isinstance(site, ast.Call):
        return UNKNOWN
    target, call = _called(site)
    if target is None or call is None:
        return _cloned(target) if target is not None else UNKNOWN
    alone = isinstance(statement, ast.Expr) and statement.value is site
    if alone and not _dotted(target):  # `y[0].mul_(2)` changes y: `y[0].mul(2)` alone would change nothing
        return _cloned(target)
    return Instead(_assigned(target, call) if alone else _shown(call), _clone(target))


def reads(statement: ast.stmt) -> list[ast.expr]:
    """Where the statement that writes reads what it writes to: `h[t - 1]` in `h[t] = h[t - 1] @ w`. A clone before the statement
    leaves both in one memory; one of what is read parts them."""
    target = _target(statement)
    while isinstance(target, ast.Subscript):
        target = target.value
    if target is None or not _dotted(target):
        return []
    name = ast.unparse(target)
    found: list[ast.expr] = []
    values: list[ast.AST] = []
    if isinstance(statement, (ast.Assign, ast.AugAssign)):
        values = [statement.value]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        values = [*statement.value.args, *(k.value for k in statement.value.keywords)]
    while values:
        node = values.pop()
        root = node
        while isinstance(root, ast.Subscript):
            root = root.value
        if isinstance(root, (ast.Name, ast.Attribute)) and ast.unparse(root) == name:
            assert isinstance(node, ast.expr)
            found.append(node)
        elif not (isinstance(node, ast.Attribute) and node.attr in _FACTS):
            values += ast.iter_child_nodes(node)
    return sorted(found, key=lambda n: (n.lineno, n.col_offset))


def _target(statement: ast.stmt) -> ast.expr | None:
    if isinstance(statement, ast.AugAssign):
        return statement.target
    if isinstance(statement, ast.Assign):
        return statement.targets[0] if len(statement.targets) == 1 else None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _called(statement.value)[0]
    return None


def _cloned(target: ast.expr) -> Instead:
    return Instead("", _clone(target), isinstance(target, ast.Subscript))


def _called(site: ast.Call) -> tuple[ast.expr | None, ast.expr | None]:
    """What an in-place call writes to, and the same call out of place: `y.relu_()`, `torch.relu_(y)`."""
    func = site.func
    if not isinstance(func, ast.Attribute) or not func.attr.endswith("_") or func.attr.endswith("__"):
        return None, None
    twin = func.attr[:-1]
    function = isinstance(func.value, ast.Name) and func.value.id in ("torch", "F")
    if function and not site.args:
        return None, None
    target = site.args[0] if function else func.value
    fresh = _FRESH.get(func.attr)
    if fresh is not None and not site.keywords and (function or len(site.args) == fresh.count("{}") - 1):
        words = [ast.unparse(one) for one in ([] if function else [target])] + [
            ast.unparse(a) for a in site.args
        ]
        return target, ast.parse(fresh.format(*words), mode="eval").body
    if func.attr in _NO_TWIN or table.op(twin) is None:
        return target, None
    return target, ast.Call(ast.Attribute(func.value, twin, ast.Load()), site.args, site.keywords)


def _assigned(target: ast.expr, value: ast.expr) -> str:
    text = _shown(value)
    return f"{ast.unparse(target)} = {text}" if text else ""


def _shown(value: ast.expr) -> str:
    try:
        text = ast.unparse(value)
    except RecursionError:
        return ""
    return text if len(text) <= _LONGEST and "\n" not in text and "`" not in text else ""


def _clone(target: ast.expr) -> str:
    while isinstance(target, ast.Subscript):
        target = target.value
    return f"{ast.unparse(target)} = {ast.unparse(target)}.clone()" if _dotted(target) else ""


def _dotted(node: ast.expr) -> bool:
    """`y`, `self.y`: what can be bound anew."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
