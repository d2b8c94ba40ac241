"""A buffer filled row by row -> a list of rows, stacked where the whole is read.

Rows are then separate tensors: writing one leaves the others, and what was kept of them, alone, and no
row is copied (a clone per write would copy the whole buffer each time).
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 22
_LATE = 20  # a tensor that an op computed is no list of rows: a clone of it is what one would write
_EMPTY: tuple[str, ...] = ("zeros", "empty", "ones", "full", "new_zeros", "new_empty", "new_ones", "new_full")
_EMPTY += ("zeros_like", "empty_like", "ones_like", "full_like")


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for extra, place, tree, statement in syntax.writing(project, facts, 2):
        name = _row_written(statement)
        if name is None:
            continue
        cuts = _rows(tree, statement, name)
        late = 0 if _is_filled(tree, statement, name) else _LATE
        if cuts:
            title = f"keep the rows of `{name}` in a list and stack them"
            new = tree.replace(*cuts)
            yield Candidate(title, "collect", RANK + extra + late, {place.file: new})


def _is_filled(tree: Tree, statement: cst.CSTNode, name: str) -> bool:
    """Is it a buffer that was made to be filled, row by row in a loop?"""
    if not any(isinstance(n, (cst.For, cst.While)) for n in tree.up(statement)):
        return False
    for node in tree.inside(tree.scope(statement)):
        if isinstance(node, cst.Assign) and any(syntax.dotted(t.target) == name for t in node.targets):
            made = [c for c in syntax.walk(node.value) if isinstance(c, cst.Call)]
            if any(isinstance(c.func, cst.Attribute) and c.func.attr.value in _EMPTY for c in made):
                return True
    return False


def _row_written(statement: cst.CSTNode) -> str | None:
    target: cst.CSTNode | None = None
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        target = statement.targets[0].target
    elif isinstance(statement, cst.AugAssign):
        target = statement.target
    if isinstance(target, cst.Subscript) and isinstance(target.value, cst.Name) and _is_row(target):
        return target.value.value
    return None


def _is_row(node: cst.Subscript) -> bool:
    """One index that picks one row: not a slice, tuple, mask or list."""
    if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        return False
    index = node.slice[0].slice.value
    return isinstance(index, (cst.Name, cst.Integer, cst.UnaryOperation, cst.BinaryOperation, cst.Attribute))


def _rows(tree: Tree, statement: cst.CSTNode, name: str) -> list[Cut]:
    scope = tree.scope(statement)
    cuts: list[Cut] = []
    made = False
    for use in syntax.same_names(tree, scope, name):
        above = tree.parent(use)
        if isinstance(above, cst.Param) or tree.scope(use) is not scope:
            return []
        if isinstance(above, cst.AssignTarget):
            assign = tree.parent(above)
            assert isinstance(assign, cst.Assign)
            cuts += _listed(tree, assign.value)
            made = True
        elif isinstance(above, cst.Element) and isinstance(
            tree.parent(tree.parent(above) or above), cst.AssignTarget
        ):
            value = _element_value(tree, above)
            if value is None:
                return []
            cuts += _listed(tree, value)
            made = True
        elif isinstance(above, cst.Subscript) and above.value is use and _is_row(above):
            continue
        elif isinstance(above, (cst.Del, cst.Global, cst.Nonlocal, cst.AugAssign)):
            return []
        else:
            cuts.append(tree.cut(use, f"{syntax.torch_name(tree)}.stack({name})"))
    return cuts if made else []


def _listed(tree: Tree, value: cst.BaseExpression) -> list[Cut]:
    """`list(...)` around a value, which may read the name itself: `h = cell(x, h)`."""
    start, end = tree.span(value)
    return [(start, start, "list("), (end, end, ")")]


def _element_value(tree: Tree, element: cst.Element) -> cst.BaseExpression | None:
    """The right-hand side of one name in `a, b = x, y`."""
    names = tree.parent(element)
    assign = next((n for n in tree.up(element) if isinstance(n, cst.Assign)), None)
    if not isinstance(names, cst.Tuple) or assign is None or not isinstance(assign.value, cst.Tuple):
        return None
    place = next(i for i, e in enumerate(names.elements) if e is element)
    values = assign.value.elements
    return values[place].value if len(values) == len(names.elements) else None
