"""Several views of one call (`s, i = state[t - 1]`, `unbind`, `chunk`) whose base is written later: cut them from a copy.

PyTorch follows a write through one view at a time; views that come several from one call may not outlive it.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.tree import Tree

RANK = 6
_CALLS = ("unbind", "split", "chunk", "tensor_split", "hsplit", "vsplit", "dsplit")


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if "multiple views" not in facts.message or "base or another view" not in facts.message:
        return
    for extra, place, tree, statement in syntax.writing(project, facts, 1):
        read = {n.value for n in syntax.walk(statement) if isinstance(n, cst.Name)}
        for made in _makers(tree, statement, read):
            value = made.value if isinstance(made, cst.Assign) else made.iter
            source = _source(value)
            if source is None:
                continue
            end = tree.span(source)[1]
            title = f"cut the views on line {tree.lines(made)[0]} from a copy"
            yield Candidate(
                title, "views_apart", RANK + extra, {place.file: tree.replace((end, end, ".clone()"))}
            )


def _makers(tree: Tree, statement: cst.CSTNode, read: set[str]) -> Iterator[cst.Assign | cst.For]:
    """Statements that made several views at once, of names that this one reads; the nearest above first."""
    before = tree.span(statement)[0]
    found: list[cst.Assign | cst.For] = []
    for node in tree.inside(tree.scope(statement)):
        if isinstance(node, cst.Assign) and tree.span(node)[0] < before:
            names = {n.value for t in node.targets for n in syntax.walk(t.target) if isinstance(n, cst.Name)}
            several = any(isinstance(t.target, (cst.Tuple, cst.List)) for t in node.targets)
            if names & read and (several or _source(node.value) is not node.value):
                found.append(node)
        elif isinstance(node, cst.For) and isinstance(node.target, cst.Name) and node.target.value in read:
            found.append(node)
    return reversed(found)


def _source(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """What the views are cut from: `x` of `x.chunk(2)` and `torch.unbind(x)`, all of `state[t - 1]`."""
    if (
        isinstance(value, cst.Call)
        and isinstance(value.func, cst.Attribute)
        and value.func.attr.value in _CALLS
    ):
        if syntax.of_namespace(value.func):
            return value.args[0].value if value.args else None
        return value.func.value
    return value if isinstance(value, (cst.Name, cst.Attribute, cst.Subscript)) else None
