"""A parameter can't be rebound on its module: use a local tensor for the rest of the function.

`self.weight *= mask; F.linear(x, self.weight)` -> `weight = self.weight * mask; F.linear(x, weight)`
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.rewrites.rebind import rebound
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 26


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for extra, place, tree, statement in syntax.writing(project, facts, 2):
        target = _attribute(statement)
        if target is None:
            continue
        cuts = _local(tree, statement, target)
        if cuts:
            title = f"use a local `{target.attr.value}` from line {place.line} on"
            note = (
                f"line {place.line} no longer writes `{tree.code(target)}` itself: if its new value is to last, "
                "store it after backward(), and outside of what is computed twice"
            )
            yield Candidate(title, "localize", RANK + extra, {place.file: tree.replace(*cuts)}, note)


def _attribute(statement: cst.CSTNode) -> cst.Attribute | None:
    """The attribute that the statement writes into, if it is one."""
    found: cst.BaseExpression | None = None
    if isinstance(statement, cst.AugAssign):
        found = syntax.stem(statement.target)
    elif isinstance(statement, cst.Assign) and isinstance(statement.targets[0].target, cst.Subscript):
        found = syntax.stem(statement.targets[0].target)
    elif isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        found = syntax.stem(statement.value)
    return found if isinstance(found, cst.Attribute) and syntax.is_place(found) else None


def _local(tree: Tree, statement: cst.CSTNode, target: cst.Attribute) -> list[Cut]:
    function = tree.function(statement)
    name, full = target.attr.value, tree.code(target)
    if function is None or syntax.same_names(tree, function, name):
        return []
    cuts = _first(tree, statement, name, full)
    end = tree.span(statement)[1]
    later = [
        tree.cut(n, name)
        for n in tree.inside(function)
        if isinstance(n, cst.Attribute) and tree.span(n)[0] >= end and tree.code(n) == full
    ]
    return [*cuts, *later] if cuts and later else []


def _first(tree: Tree, statement: cst.CSTNode, name: str, full: str) -> list[Cut]:
    """The writing statement itself, made to give the local name its value."""
    for _, cuts in rebound(tree, statement, alone=True):
        (start, end, new), *rest = cuts
        if new.startswith(f"{full} = "):
            return [(start, end, f"{name} = " + new.removeprefix(f"{full} = ")), *rest]
    start, end = tree.span(statement)
    text = tree.text[start:end].replace(full, name)
    joint = tree.newline + tree.indent(statement) if tree.own_line(statement) else "; "
    return [(start, end, f"{name} = {full}.clone(){joint}{text}")]
