"""Give the result a new tensor and the old name: `x += e` -> `x = x + e`, `x.relu_()` -> `x = x.relu()`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts, Place
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 10


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for extra, place, tree, statement in syntax.writing(project, facts):
        if _into_tensor(statement, facts, place):
            continue  # `x[0] = x[0] + 1` writes to x all the same
        for order, (title, cuts) in enumerate(rebound(tree, statement)):
            new = tree.replace(*cuts)
            rank = RANK + extra + order
            yield Candidate(f"{title} (line {place.line})", "rebind", rank, {place.file: new})


def _into_tensor(statement: cst.CSTNode, facts: Facts, place: Place) -> bool:
    """Is an item of a tensor written, and not one of a list? Slices and several indices are a tensor's, and so is what
    the ledger saw assigned."""
    target: cst.CSTNode | None = getattr(statement, "target", None)
    if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        target = _chain_base(statement.value)
    if not isinstance(target, cst.Subscript):
        return False
    if len(target.slice) != 1 or isinstance(target.slice[0].slice, cst.Slice):
        return True
    return any(w.op == "__setitem__" and w.chain and w.chain[0].line == place.line for w in facts.writes)


def rebound(tree: Tree, statement: cst.CSTNode, alone: bool = False) -> Iterator[tuple[str, list[Cut]]]:
    """Each way to make the writes of one statement out of place. `alone`: what follows it is not known."""
    if isinstance(statement, cst.AugAssign):
        yield from _augmented(tree, statement, alone)
        return
    header = _header(statement)
    calls = [n for part in header for n in syntax.walk(part) if isinstance(n, cst.Call) and inplace_call(n)]
    if not calls:
        return
    if isinstance(statement, cst.Expr):
        chain = statement.value.expression if isinstance(statement.value, cst.Await) else statement.value
        base = _chain_base(chain) if isinstance(chain, cst.Call) else None
        if base is not None and syntax.is_place(base) and not _detour(base):
            cuts = _apart(c for call in calls if _on_chain(chain, call) for c in plain_name(tree, call))
            start, _ = tree.span(statement)
            target = tree.code(base)
            if (
                isinstance(base, cst.Name)
                and not alone
                and not syntax.used_after(tree, statement, base.value)
            ):
                return  # nobody would read the result: the write would be lost
            yield f"rebind `{target}` to a new tensor", [(start, start, f"{target} = "), *cuts]
            return
        if not _has_user(tree, statement, calls):
            return
    # The result is used where it stands: drop the underscore, and keep the name bound to it if it is read again.
    every = _apart(c for call in calls for c in plain_name(tree, call))
    yield "use the out-of-place form", every
    for call in calls:
        base = _chain_base(call)
        if isinstance(base, cst.Name) and not _in_lambda(tree, call, statement):
            start, end = tree.span(call)
            cuts = [c for c in plain_name(tree, call) if start <= c[0] < end]
            yield (
                f"rebind `{base.value}` to a new tensor",
                [(start, start, f"({base.value} := "), *cuts, (end, end, ")")],
            )


def _augmented(tree: Tree, statement: cst.AugAssign, alone: bool) -> Iterator[tuple[str, list[Cut]]]:
    target = tree.code(statement.target)
    if not syntax.is_place(statement.target) or _detour(statement.target):
        return
    if (
        isinstance(statement.target, cst.Name)
        and not alone
        and not syntax.used_after(tree, statement, target)
    ):
        return  # nobody would read the result: the write would be lost
    operator = tree.code(statement.operator).strip().removesuffix("=")
    start, _ = tree.span(statement)
    value_start, value_end = tree.span(statement.value)
    gap = tree.text[tree.span(statement.target)[1] : value_start]
    value = syntax.operand(tree, statement.value, operator)
    new = f"{target}{gap.replace(operator + '=', '=', 1)}{target} {operator} {value}"
    # The written tensor may be another name's too: in-place kept its dtype, so offer that as well.
    yield f"rebind `{target}` to a new tensor", [(start, value_end, new)]
    kept = f"{target} = ({target} {operator} {value}).to({target}.dtype)"
    yield f"rebind `{target}` to a new tensor of the same dtype", [(start, value_end, kept)]


def _has_user(tree: Tree, statement: cst.CSTNode, calls: list[cst.Call]) -> bool:
    """Does something take the result of a call, or is it thrown away with the statement?"""
    for call in calls:
        top: cst.CSTNode = call
        above = tree.parent(top)
        while isinstance(above, (cst.Attribute, cst.Await)) or (
            isinstance(above, cst.Call) and above.func is top
        ):
            top, above = above, tree.parent(above)
        if above is not statement:
            return True
    return False


def inplace_call(call: cst.Call) -> bool:
    """`x.add_(...)`, `torch.relu_(x)`, `F.elu_(x)`."""
    func = call.func
    return isinstance(func, cst.Attribute) and syntax.is_inplace_name(func.attr.value) and not _is_other(func)


def _is_other(func: cst.Attribute) -> bool:
    """Names that end in `_` and are no in-place arithmetic."""
    return func.attr.value in ("requires_grad_", "share_memory_", "retain_grad_") or "init" in syntax.dotted(
        func.value
    )


def plain_name(tree: Tree, call: cst.Call) -> list[Cut]:
    assert isinstance(call.func, cst.Attribute)
    name = call.func.attr
    if name.value == "copy_" and len(call.args) >= 1:
        # `x.copy_(y)` has no out-of-place twin of that name; the value itself is.
        (start, end), (first, last) = tree.span(call), tree.span(call.args[0].value)
        bare = isinstance(tree.parent(call), (cst.Expr, cst.Assign, cst.Return, cst.Arg))
        loose = isinstance(
            call.args[0].value, (cst.BinaryOperation, cst.UnaryOperation, cst.IfExp, cst.Lambda)
        )
        left, right = ("", "") if bare or not loose else ("(", ")")
        return [(start, first, left), (last, end, right)]
    _, end = tree.span(name)
    return [(end - 1, end, "")]


def _apart(cuts: Iterable[Cut]) -> list[Cut]:
    """Without those in text that another one takes away: of `x.zero_().copy_(y)` only `y` stays."""
    every = list(cuts)
    return [c for c in every if not any(o is not c and o[0] <= c[0] and c[1] <= o[1] for o in every)]


def _chain_base(call: cst.BaseExpression) -> cst.BaseExpression | None:
    """`x` of `x.mul_(a).add_(b)` and of `torch.relu_(x)`."""
    node: cst.BaseExpression = call
    while isinstance(node, cst.Call):
        func = node.func
        if not isinstance(func, cst.Attribute) or not inplace_call(node):
            return None
        if syntax.of_namespace(func):
            return node.args[0].value if node.args else None
        node = func.value
    return node


def _on_chain(chain: cst.BaseExpression, call: cst.Call) -> bool:
    node: cst.BaseExpression = chain
    while isinstance(node, cst.Call):
        if node is call:
            return True
        if not isinstance(node.func, cst.Attribute):
            return False
        node = node.func.value
    return False


def _detour(base: cst.BaseExpression) -> bool:
    """`x.data` is not rebound here: the edit of a live tensor has its own rewrite."""
    return any(isinstance(n, cst.Attribute) and n.attr.value == "data" for n in syntax.walk(base))


def _in_lambda(tree: Tree, node: cst.CSTNode, statement: cst.CSTNode) -> bool:
    for above in tree.up(node):
        if above is statement:
            return False
        if isinstance(above, (cst.Lambda, cst.BaseComp)):
            return True
    return False


def _header(statement: cst.CSTNode) -> list[cst.CSTNode]:
    """The parts of a statement that run on its own line: not the body of a loop or function."""
    if isinstance(statement, cst.BaseCompoundStatement):
        return [c for c in statement.children if not isinstance(c, (cst.BaseSuite, cst.Else, cst.Finally))]
    return [statement]
