"""Does a variable alone hold its tensor? Then a new tensor under its name is the same program, out of place.

Read from the source, and only where it is plain: the name was bound to a result that nobody else can have, and until
the line in question it was only computed with. Whatever the source does not settle is a no.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from gradmend.story.source import Source

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
# They may hand back what they were given.
_SAME = frozenset(
    "dropout alpha_dropout feature_dropout feature_alpha_dropout einsum lift pad fold interpolate".split()
)
# They read, and keep nothing.
_READS = frozenset(
    "shape dtype device ndim grad_fn requires_grad is_leaf _version size dim numel item tolist backward stride is_contiguous "
    "element_size nelement data_ptr storage_offset retain_grad".split()
)
_BUILTINS = frozenset("print len float int bool str repr id type isinstance abs round".split())
_GRAD_OFF = ("no_grad", "inference_mode", "set_grad_enabled")


def sole(source: Source, statement: ast.stmt, name: str, made_on: int = 0) -> bool:
    """At this statement, has nobody but the variable `name` the tensor that it holds? `made_on`: a line on which an op
    made that tensor, as the ledger saw."""
    scope = scope_of(source, statement)
    if _grad_may_be_off(source, statement) or _shared_by_functions(source, scope, name):
        return False
    inner: Any = statement
    while True:
        block = _block(source, inner)
        before = block[: block.index(inner)] if inner in block else []
        for made in reversed(before):
            if _binds(made, name):
                uses = _uses(scope, name, _after(made), _region_end(source, inner, statement))
                new = _fresh(source, made) or made.lineno <= made_on <= _after(made)[0]
                return new and all(_harmless(source, n, statement) for n in uses)
        inner = source.parents[inner]
        if inner is scope or isinstance(inner, _SCOPES):
            return False  # an argument, or another function's


def read_after(source: Source, statement: ast.stmt, name: str) -> bool:
    """Is the name read after this statement, or earlier in a loop around it?"""
    scope = scope_of(source, statement)
    loops = [up for up in source.ancestors(statement) if isinstance(up, _LOOPS)]
    start = (min(up.lineno for up in loops), 0) if loops else _after(statement)
    return any(source.statement(n) is not statement for n in _uses(scope, name, start, (1 << 60, 0)))


def scope_of(source: Source, node: ast.AST) -> ast.AST:
    return next(up for up in source.ancestors(node) if isinstance(up, _SCOPES))


def _region_end(source: Source, inner: ast.AST, statement: ast.stmt) -> tuple[int, int]:
    """What runs before the statement: all above it, and all of a loop that holds it and not the name's binding."""
    end = statement.lineno, statement.col_offset
    for up in (statement, *source.ancestors(statement)):
        if isinstance(up, _LOOPS):
            end = _after(up)
        if up is inner:
            return end
    return end


def _after(node: ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _block(source: Source, node: ast.AST) -> list[ast.stmt]:
    above = source.parents[node]
    for field in ("body", "orelse", "finalbody"):
        block = getattr(above, field, None)
        if isinstance(block, list) and node in block:
            return block
    return []


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.AugAssign):
        return False
    return any(
        isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load) for n in ast.walk(node)
    )


def _fresh(source: Source, statement: ast.AST) -> bool:
    """Does the statement bind its name to a tensor that nobody else can have?"""
    match statement:
        case ast.Assign(targets=[ast.Name()], value=value) | ast.AnnAssign(value=ast.expr() as value):
            return fresh_value(source, value)
    return False


def fresh_value(source: Source, value: ast.expr) -> bool:
    match value:
        case ast.BinOp() | ast.UnaryOp() | ast.Compare():
            return True
        case ast.Call(func=ast.Attribute(value=receiver, attr=method)):
            return _new(method) and (not _is_module(source, receiver) or _torch(source, receiver))
    return False


def _is_module(source: Source, node: ast.expr) -> bool:
    """`F` of `F.relu`, `np` of `np.exp`, `self` of `self.act`: no tensor."""
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and (root.id in source.imported or root.id in ("self", "cls"))


def _torch(source: Source, node: ast.expr) -> bool:
    text = ast.unparse(node)
    return text in (
        "torch",
        "F",
        "torch.nn.functional",
        "nn.functional",
        "functional",
        "torch.special",
        "torch.linalg",
    )


def _new(method: str) -> bool:
    """Ops that return memory of their own."""
    from gradmend.check.table import CONVERSIONS, FACTORIES, op

    if method in FACTORIES or method == "clone":
        return method != "as_tensor"
    known = op(method)
    return (
        known is not None
        and not known.view
        and method not in CONVERSIONS | _SAME
        and not method.endswith("_")
    )


def _uses(scope: ast.AST, name: str, start: tuple[int, int], end: tuple[int, int]) -> Iterator[ast.Name]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Name) and node.id == name and start <= (node.lineno, node.col_offset) < end:
            yield node


def _harmless(source: Source, use: ast.expr, statement: ast.stmt) -> bool:
    """Nobody keeps the tensor by this use of its name."""
    if source.statement(use) is statement:
        return True
    above = source.parents[use]
    match above:
        case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.FormattedValue() | ast.Expr() | ast.Return():
            return True
        case ast.If() | ast.While() | ast.Assert():
            return True
        case ast.AugAssign():
            return True
        case ast.Assign(targets=targets, value=value):  # bound anew: to something of its own again
            return use in targets and fresh_value(source, value)
        case ast.Subscript(value=value) if value is use:
            return isinstance(above.ctx, ast.Store) or _harmless(source, above, statement)
        case ast.Subscript():
            return True  # an index
        case ast.Attribute(attr=attr):
            call = source.parents[above]
            if isinstance(call, ast.Call) and call.func is above:
                writes = attr.endswith("_") and isinstance(source.parents[call], ast.Expr)
                return attr in _READS or _new(attr) or (writes and attr != "set_")
            return attr in _READS
        case ast.keyword():
            call = source.parents[above]
            return isinstance(call, ast.Call) and above.arg != "out" and _keeps_nothing(source, call)
        case ast.Call():
            return _keeps_nothing(source, above)
    return False


def _keeps_nothing(source: Source, call: ast.Call) -> bool:
    match call.func:
        case ast.Name(id=name):
            return name in _BUILTINS
        case ast.Attribute(value=receiver, attr=method):
            if _is_module(source, receiver):
                return _torch(source, receiver) and _new(method)
            return _new(method)  # an argument of a tensor's method
    return False


def _grad_may_be_off(source: Source, statement: ast.stmt) -> bool:
    """A new tensor made there would be cut off from the graph."""
    for up in source.ancestors(statement):
        asked: list[ast.expr] = []
        if isinstance(up, ast.With | ast.AsyncWith):
            asked = [item.context_expr for item in up.items]
        elif isinstance(up, ast.FunctionDef | ast.AsyncFunctionDef):
            asked = up.decorator_list
        if any(word in ast.unparse(a) for a in asked for word in _GRAD_OFF):
            return True
    return False


def _shared_by_functions(source: Source, scope: ast.AST, name: str) -> bool:
    """Does a function inside use the name, or is it declared global or nonlocal?"""
    for node in ast.walk(scope):
        if isinstance(node, ast.Global | ast.Nonlocal) and name in node.names:
            return True
        if isinstance(node, ast.Name) and node.id == name and scope_of(source, node) is not scope:
            return not _is_own(source, node, scope)
    return False


def _is_own(source: Source, node: ast.Name, scope: ast.AST) -> bool:
    """A function's own variable that merely has the same name."""
    home = scope_of(source, node)
    if isinstance(home, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = [*home.args.posonlyargs, *home.args.args, *home.args.kwonlyargs]
        return any(a.arg == node.id for a in arguments)
    return False
