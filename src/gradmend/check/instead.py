"""The line that writes in place, written out of place: what a finding's help tells the reader to type."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from gradmend.check import table

_LONGEST = 72  # of what is shown; a longer line is clearer in the file than in a message
# Methods whose name without the underscore is missing, or does something else; tests ask torch.
_NO_TWIN = table.OVERWRITES | {"bernoulli_", "random_"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_FACTS = frozenset({"shape", "size", "dtype", "device", "ndim", "dim", "numel", "requires_grad"})
_FRESH = {"zero_": "torch.zeros_like({})", "fill_": "torch.full_like({}, {})"}


@dataclass(frozen=True, slots=True)
class Instead:
    line: str = ""  # `y = y + 1`
    clone: str = ""  # `y = y.clone()`, to stand before the line
    part: bool = False  # the line writes to a part of what would be cloned: `y[0] = 1`
    given: str = ""  # a parameter that is written for the caller; `line` is the new tensor then
    returned: bool = False  # by a return that hands it back already


UNKNOWN = Instead()


def instead(
    statement: ast.stmt | None, site: ast.AST, scope: ast.AST | None = None, held: ast.expr | None = None
) -> Instead:
    """Of the statement, where it is the write itself; else of the call inside of it. `scope`: the function or module around.
    `held`: the item of a list or dict that the written tensor is: it can be bound anew as a name can."""
    if held is not None:
        return _of_item(statement, site, held)
    if isinstance(statement, ast.AugAssign) and site is statement:
        if not _dotted(statement.target):
            return _kept(_cloned(statement.target), statement.target, None, statement, scope)
        value = ast.BinOp(statement.target, statement.op, statement.value)
        found = Instead(_assigned(statement.target, value), _clone(statement.target))
        return _kept(found, statement.target, value, statement, scope)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and site is statement:
        return _kept(_cloned(statement.targets[0]), statement.targets[0], None, statement, scope)
    if not isinstance(site, ast.Call):
        return UNKNOWN
    alone = isinstance(statement, ast.Expr) and any(site is one for one in _chained(statement.value))
    target, call = _chain(statement.value if alone else site)  # type: ignore[union-attr]
    if target is None or call is None or (alone and not _dotted(target)):
        # `y[0].mul_(2)` changes y: `y[0].mul(2)` alone would change nothing
        found = _cloned(target) if target is not None else UNKNOWN
    elif alone:
        found = Instead(_assigned(target, call), _clone(target))
    elif _bound_again(statement, target) or not _read_after(statement, target, scope):
        found = Instead(_shown(call), _clone(target))
    else:  # the result is used here, and the changed tensor later
        found = Instead("", _clone(target))
    return _kept(found, target, call, statement, scope)


def _of_item(statement: ast.stmt | None, site: ast.AST, held: ast.expr) -> Instead:
    """`hs[i] += 1`, `hs[i].add_(1)`, `hs[i][0] = 1` of a list `hs`."""
    name = ast.unparse(held)
    clone = f"{name} = {name}.clone()"
    if isinstance(statement, ast.AugAssign) and site is statement:
        if ast.unparse(statement.target) != name:
            return Instead("", clone, True)
        return Instead(_assigned(held, ast.BinOp(held, statement.op, statement.value)), clone)
    if isinstance(statement, ast.Expr) and statement.value is site and isinstance(site, ast.Call):
        target, call = _chain(site)
        if target is not None and call is not None and ast.unparse(target) == name:
            return Instead(_assigned(held, call), clone)
    return Instead("", clone, isinstance(statement, ast.Assign))


def _kept(
    found: Instead,
    target: ast.expr | None,
    value: ast.expr | None,
    statement: ast.stmt | None,
    scope: ast.AST | None,
) -> Instead:
    """A parameter that nobody reads after the write is written for the caller: a new tensor must get there."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if not isinstance(scope, _FUNCTIONS) or not isinstance(target, ast.Name) or statement is None:
        return found
    spec = scope.args
    given = {a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)}
    if target.id not in given or _read_after(statement, target, scope) or _bound_again(statement, target):
        return found
    returned = isinstance(statement, ast.Return)
    return Instead(_shown(value) if value is not None else "", "", found.part, target.id, returned)


def _bound_again(statement: ast.stmt | None, target: ast.expr) -> bool:
    """`y = y.add_(1)`"""
    return isinstance(statement, ast.Assign) and any(
        ast.unparse(one) == ast.unparse(target) for one in statement.targets
    )


def _read_after(statement: ast.stmt | None, target: ast.expr, scope: ast.AST | None) -> bool:
    """May something read it by this name once the statement is done? In a loop, the lines before are such too."""
    if isinstance(statement, ast.Return):
        return not isinstance(target, ast.Name)
    if statement is None or scope is None or not isinstance(target, ast.Name):
        return True
    first = statement.end_lineno or statement.lineno
    for node in ast.walk(scope):
        loop = isinstance(node, (ast.For, ast.While, ast.AsyncFor))
        if loop and node.lineno <= statement.lineno <= (node.end_lineno or node.lineno):  # type: ignore[attr-defined]
            first = min(first, node.lineno)  # type: ignore[attr-defined]
    inside = set(map(id, ast.walk(statement)))
    return any(
        isinstance(node, ast.Name)
        and node.id == target.id
        and isinstance(node.ctx, ast.Load)
        and node.lineno >= first
        and id(node) not in inside
        for node in ast.walk(scope)
    )


def _chained(value: ast.expr) -> list[ast.Call]:
    """The calls of `y.mul_(2).add_(1)`, the last first."""
    found = []
    while isinstance(value, ast.Call):
        found.append(value)
        if not isinstance(value.func, ast.Attribute):
            break
        value = value.func.value
    return found


def _chain(site: ast.Call) -> tuple[ast.expr | None, ast.expr | None]:
    """As `_called`, through calls on the result of such calls."""
    target, call = _called(site)
    if not isinstance(target, ast.Call) or site.func is target:
        return target, call
    root, inner = _chain(target)
    if root is None:
        return target, call
    if inner is None or not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return root, None
    if call.func.value is not target:
        return root, None
    return root, ast.Call(ast.Attribute(inner, call.func.attr, ast.Load()), call.args, call.keywords)


def reads(statement: ast.stmt) -> list[ast.expr]:
    """Where the statement that writes reads what it writes to: `h[t - 1]` in `h[t] = h[t - 1] @ w`. A clone before the statement
    leaves both in one memory; one of what is read parts them."""
    target = target_of(statement)
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


def target_of(statement: ast.stmt) -> ast.expr | None:
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
