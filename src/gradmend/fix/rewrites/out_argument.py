"""`torch.mul(a, b, out=buf)` -> `buf = torch.mul(a, b)`: out= has no gradient."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 8


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for extra, place, tree, statement in syntax.writing(project, facts):
        for cuts in _without_out(tree, statement):
            title = f"bind the result instead of out= (line {place.line})"
            new = tree.replace(*cuts)
            yield Candidate(title, "out_argument", RANK + extra, {place.file: new})


def _without_out(tree: Tree, statement: cst.CSTNode) -> Iterator[list[Cut]]:
    for call in syntax.walk(statement):
        if not isinstance(call, cst.Call):
            continue
        for index, arg in enumerate(call.args):
            if arg.keyword is None or arg.keyword.value != "out":
                continue
            drop = _drop(tree, call, index)
            places = _targets(arg.value)
            if not places or not all(syntax.is_place(p) for p in places):
                continue
            named = ", ".join(tree.code(p) for p in places)
            start, _ = tree.span(statement)
            if isinstance(statement, cst.Expr):
                yield [drop, (start, start, f"{named} = ")]
            elif isinstance(statement, cst.Assign) and statement.value is call:
                same = any(tree.code(t.target) == named for t in statement.targets)
                yield [drop] if same else [drop, (start, start, f"{named} = ")]
            elif isinstance(places[0], cst.Name) and len(places) == 1:
                begin, end = tree.span(call)
                yield [drop, (begin, begin, f"({named} := "), (end, end, ")")]
            else:
                yield [drop]


def _targets(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(value, (cst.Tuple, cst.List)):
        return [e.value for e in value.elements]
    return [value]


def _drop(tree: Tree, call: cst.Call, index: int) -> Cut:
    """Remove an argument with the comma that belongs to it."""
    start, end = tree.span(call.args[index])
    if index + 1 < len(call.args):
        return start, tree.span(call.args[index + 1])[0], ""
    if index:
        return tree.span(call.args[index - 1].value)[1], tree.span(call.args[index].value)[1], ""
    return start, end, ""
