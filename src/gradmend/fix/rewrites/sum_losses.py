"""Losses that share a graph: one `backward()` of their sum walks it once and frees it.

Only where nothing between the calls can tell the difference: no gradient is read, nothing is updated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 3  # retain_graph=True keeps the whole graph, and walks its shared part once for each loss
NOTE = "the same gradients as with retain_graph=True at each backward() but the last; the graph is walked once, and freed"


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if not facts.second:
        return
    for place in facts.backward:
        tree = project.tree(place.file)
        for statement in tree.statements(place.line, place) if tree is not None else ():
            assert tree is not None
            ways = (_loop(tree, statement), _series(tree, statement, True), _series(tree, statement, False))
            for order, (cuts, calls) in enumerate(ways):
                if cuts:
                    lines = sorted({tree.lines(c)[0] for c in calls})
                    title = (
                        f"one backward() of the summed losses (line{'s' * (len(lines) > 1)} {_listed(lines)})"
                    )
                    joined = frozenset((place.file, n) for n in lines)
                    yield Candidate(
                        title,
                        "sum_losses",
                        RANK + (order > 1),
                        {place.file: tree.replace(*cuts)},
                        NOTE,
                        joined,
                    )


def _listed(lines: Sequence[int]) -> str:
    return ", ".join(map(str, lines[:-1])) + " and " * (len(lines) > 1) + str(lines[-1])


# -- `a.backward()` and `b.backward()` in one block ----------------------------------------------------
def _series(tree: Tree, statement: cst.CSTNode, adjacent: bool) -> tuple[list[Cut], list[cst.CSTNode]]:
    """Calls up to this one, and those that follow it at once. A graph is held no longer than it must be."""
    line = tree.parent(statement)
    block = tree.parent(line) if line is not None else None
    if _loss(statement) is None or not isinstance(block, (cst.IndentedBlock, cst.Module)):
        return [], []
    every: list[cst.CSTNode] = []
    for one in block.body:
        every += one.body if isinstance(one, cst.SimpleStatementLine) else [one]
    here = next(i for i, n in enumerate(every) if n is statement)
    before = _reach(tree, every[here::-1], adjacent)[::-1]
    calls = [*before, *_reach(tree, every[here:], True)[1:]]
    losses = [_loss(c) for c in calls]
    if len(calls) < 2 or _rebound(tree, every, calls):
        return [], []
    total = " + ".join(tree.code(n) for n in losses if n is not None)
    return [*map(tree.without, calls[:-1]), tree.cut(calls[-1], f"({total}).backward()")], calls


def _reach(tree: Tree, statements: Sequence[cst.CSTNode], adjacent: bool) -> list[cst.CSTNode]:
    """The calls from the first on, as far as nothing or only harmless statements lie between."""
    found: list[cst.CSTNode] = []
    for node in statements:
        if _loss(node) is not None:
            found.append(node)
        elif adjacent or not _harmless(tree, node):
            break
    return found


def _loss(statement: cst.CSTNode) -> cst.BaseExpression | None:
    """`a` of a statement `a.backward()`; a gradient or other inputs are not given."""
    call = statement.value if isinstance(statement, cst.Expr) else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    plain = all(a.keyword is not None and a.keyword.value == "retain_graph" for a in call.args)
    return call.func.value if call.func.attr.value == "backward" and plain else None


def _harmless(tree: Tree, node: cst.CSTNode) -> bool:
    """Gives values to names, prints or collects numbers; touches no gradient and updates nothing."""
    if "grad" in tree.code(node):
        return False
    if isinstance(node, cst.Assign):
        if any(isinstance(n, cst.Call) and _reads_gradients(tree, n) for n in syntax.walk(node)):
            return False
        return all(isinstance(n, cst.Name) for t in node.targets for n in _targets(t.target))
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        name = syntax.dotted(node.value.func).rsplit(".", 1)[-1]
        inner = [n for a in node.value.args for n in syntax.walk(a) if isinstance(n, cst.Call)]
        read = all(
            isinstance(c.func, cst.Attribute) and c.func.attr.value in ("item", "detach") for c in inner
        )
        return name in ("print", "append") and read
    return (
        isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Name) and ".item()" in tree.code(node)
    )


def _reads_gradients(tree: Tree, call: cst.Call) -> bool:
    """Does it call a function of this file that looks at `.grad`?"""
    name = syntax.dotted(call.func).rsplit(".", 1)[-1]
    return any(
        isinstance(n, cst.FunctionDef) and n.name.value == name and re.search(r"\.grad\b", tree.code(n))
        for n in tree.nodes
    )


def _targets(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node, (cst.Tuple, cst.List)):
        return [e.value for e in node.elements]
    return [node]


def _rebound(tree: Tree, every: Sequence[cst.CSTNode], calls: Sequence[cst.CSTNode]) -> bool:
    """Does a loss lose its name before the last call, where it would be read now?"""
    read: set[str] = set()
    first, last = tree.span(calls[0])[0], tree.span(calls[-1])[0]
    for node in every:
        if not first <= tree.span(node)[0] < last:
            continue
        if isinstance(node, (cst.Assign, cst.AugAssign)):
            targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
            if read & {syntax.root_name(n) for t in targets for n in _targets(t)}:
                return True
        elif any(node is c for c in calls):
            read |= {n.value for n in syntax.walk(node) if isinstance(n, cst.Name)}
    return False


# -- `for loss in losses: loss.backward()` -------------------------------------------------------------
def _loop(tree: Tree, statement: cst.CSTNode) -> tuple[list[Cut], list[cst.CSTNode]]:
    loss = _loss(statement)
    loop = next((n for n in tree.up(statement) if isinstance(n, (cst.For, cst.FunctionDef))), None)
    if not isinstance(loss, cst.Name) or not isinstance(loop, cst.For) or loop.orelse is not None:
        return [], []
    body = loop.body.body
    only = body[0].body if len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine) else body
    if [*only] != [statement] or syntax.dotted(loop.target) != loss.value:
        return [], []
    whole = syntax.is_place(loop.iter) or isinstance(loop.iter, (cst.Tuple, cst.List))
    if not whole or syntax.used_after(tree, loop, loss.value):
        return [], []
    start, end = tree.span(loop)[0], tree.span(statement)[1]
    given = tree.code(loop.iter)
    bare = isinstance(loop.iter, cst.Tuple) and not loop.iter.lpar
    return [(start, end, f"sum({f'({given})' if bare else given}).backward()")], [statement]
