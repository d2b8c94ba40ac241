"""Let the op that saves have its own copy: `w.t()` -> `w.clone().t()` at the line that saved.

The tensor that is written later is then no longer the one kept for backward. This is right whatever
else holds the written tensor, and costs one copy of what is saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Event, Facts, Place
from gradmend.fix.source.tree import Tree

RANK = 40
_LIMIT = 10
_VALUES = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.BinaryOperation)


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if facts.saved is None:
        return
    hints = {syntax_root for w in facts.writes for syntax_root in _names(project, w)}
    if facts.saved.name:
        hints.add(facts.saved.name)
    for depth, place, tree in syntax.spots(project, facts.saved.chain[:3]):
        for statement in tree.statements(place.line, place):
            likely = _likely(tree, statement, place, facts.saved) if depth == 0 else []
            found = sorted(_operands(tree, statement, place), key=lambda n: _order(tree, n, hints, likely))
            for order, node in enumerate(found[:_LIMIT]):
                start, end = tree.span(node)
                text = tree.code(node)
                if isinstance(node, cst.BinaryOperation) and not node.lpar:
                    text = f"({text})"
                new = tree.replace((start, end, f"{text}.clone()"))
                title = f"clone `{_short(tree.code(node))}` where it is saved (line {place.line})"
                yield Candidate(title, "clone_save", RANK + order + 10 * depth, {place.file: new})


def _names(project: Project, event: Event) -> set[str]:
    """What the write's line calls the tensor it writes."""
    found = {event.name} if event.name else set()
    for place in event.chain[:1]:
        tree = project.tree(place.file)
        for statement in tree.statements(place.line, place) if tree else ():
            target = getattr(statement, "target", None) or getattr(statement, "value", None)
            if isinstance(target, cst.BaseExpression):
                found.add(tree.code(syntax.stem(target)) if tree else "")
    return {f for f in found if f}


def _operands(tree: Tree, statement: cst.CSTNode, place: Place) -> Iterator[cst.BaseExpression]:
    """Expressions on the saving line that may be the saved tensor: names and attributes that are read,
    results of calls, and of operators."""
    parts: list[cst.CSTNode] = [statement]
    if isinstance(statement, cst.BaseCompoundStatement):
        parts = [c for c in statement.children if not isinstance(c, (cst.BaseSuite, cst.Else, cst.Finally))]
    for part in parts:
        for node in syntax.walk(part):
            if isinstance(node, _VALUES) and _is_value(tree, node):
                yield node


def _is_value(tree: Tree, node: cst.BaseExpression) -> bool:
    above = tree.parent(node)
    if isinstance(above, cst.Attribute):
        # `x` of `x.t()` is a tensor; `torch` of `torch.dot`, `self` of `self.w` and method names are not.
        if above.attr is node:
            return False
        called = (
            isinstance(tree.parent(above), cst.Call) and getattr(tree.parent(above), "func", None) is above
        )
        return called and syntax.dotted(node) not in (
            "torch",
            "F",
            "nn",
            "nn.functional",
            "torch.nn.functional",
            "self",
        )
    if isinstance(above, cst.Call) and above.func is node:
        return False
    if isinstance(above, cst.Arg) and above.keyword is node:
        return False
    if (
        isinstance(above, (cst.AssignTarget, cst.Param, cst.AnnAssign))
        and getattr(above, "target", None) is node
    ):
        return False
    if isinstance(above, (cst.NameItem, cst.Annotation, cst.Del, cst.Decorator)):
        return False
    if isinstance(above, (cst.For, cst.CompFor, cst.AugAssign, cst.NamedExpr)) and above.target is node:
        return False
    if isinstance(above, cst.Element) and isinstance(
        tree.parent(tree.parent(above) or above), cst.AssignTarget
    ):
        return False
    return not (isinstance(node, cst.Name) and node.value in ("self", "True", "False", "None"))


def _likely(tree: Tree, statement: cst.CSTNode, place: Place, saved: Event) -> list[cst.CSTNode]:
    """The expression that was running, where its columns are known: it, or what it was given."""
    if place.column is None or place.end_column is None or not saved.direct:
        return []
    end = tree.place_offset(replace(place, line=place.end_line or place.line, column=place.end_column))
    span = tree.place_offset(place), end
    node = next(
        (n for n in syntax.walk(statement) if isinstance(n, _VALUES) and _bare(tree, n) == span), None
    )
    if node is None:
        return []
    if saved.slot.startswith("result"):
        return [node]
    if isinstance(node, cst.BinaryOperation):
        return [node.left, node.right]
    if isinstance(node, cst.Call):
        given: list[cst.CSTNode] = [a.value for a in node.args]
        return [node.func.value, *given] if isinstance(node.func, cst.Attribute) else given
    return [node]


def _bare(tree: Tree, node: cst.BaseExpression) -> tuple[int, int]:
    """Without its parentheses, as Python counts columns."""
    start, end = tree.span(node)
    for _ in node.lpar:
        start, end = start + 1, end - 1
    return start, end


def _order(
    tree: Tree, node: cst.BaseExpression, hints: set[str], likely: list[cst.CSTNode]
) -> tuple[int, int, int]:
    text = tree.code(node)
    tails = {h.split(".")[-1] for h in hints}
    hit = (
        0
        if text in hints
        else 1
        if text.split(".")[-1] in tails
        else 2
        if syntax.root_name(node) in tails
        else 3
    )
    return 0 if any(node is n for n in likely) else 1, hit, len(text)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:37] + "..."
