"""A parameter update is not part of the graph: `with torch.no_grad():` around it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.candidate import Candidate, Project
from gradmend.fix.facts import Facts
from gradmend.fix.rewrites import syntax
from gradmend.fix.text import Cut
from gradmend.fix.tree import Tree

RANK = 7  # only asked for where PyTorch refuses to write to a leaf


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if "leaf" not in facts.message:
        return
    for nth, event in syntax.events(facts):
        for depth, place, tree in syntax.spots(project, event.chain[:2]):
            for statement in tree.statements(place.line, place):
                for order, unit in enumerate(_units(tree, statement)):
                    cuts = wrap(tree, unit, _last(tree, unit))
                    if cuts is None:
                        continue
                    new = tree.replace(*cuts)
                    rank = RANK + nth + 2 * depth + order
                    title = f"update under torch.no_grad() (line {place.line})"
                    yield Candidate(title, "no_grad", rank, {place.file: new})


def _units(tree: Tree, statement: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The statement's line, then the loop around it."""
    for above in [statement, *tree.up(statement)]:
        if isinstance(above, (cst.SimpleStatementLine, cst.For)):
            yield above
        if isinstance(above, (cst.FunctionDef, cst.For)):
            return


def _last(tree: Tree, unit: cst.CSTNode) -> int:
    """The last of the lines that go on with the same update: they read `.grad` too."""
    last = tree.lines(unit)[1]
    block = tree.parent(unit)
    if not isinstance(block, (cst.IndentedBlock, cst.Module)) or ".grad" not in tree.code(unit):
        return last
    body = list(block.body)
    for after in body[next(i for i, n in enumerate(body) if n is unit) + 1 :]:
        if not isinstance(after, cst.SimpleStatementLine) or ".grad" not in tree.code(after):
            break
        last = tree.lines(after)[1]
    return last


def wrap(tree: Tree, unit: cst.CSTNode, last: int) -> list[Cut] | None:
    """Put lines under no_grad, one step further in."""
    first = tree.lines(unit)[0]
    if tree.text[tree.offset(first, 0) : tree.span(unit)[0]].strip():
        return None
    if any(
        isinstance(n, (cst.SimpleString, cst.FormattedString)) and _multiline(tree, n)
        for n in syntax.walk(unit)
    ):
        return None  # moving its lines would change the string
    indent = tree.indent(unit)
    step = tree.module.default_indent
    cuts: list[Cut] = []
    for line in range(first, last + 1):
        at = tree.offset(line, 0)
        if tree.line_text(line).strip():
            cuts.append((at, at, step))
    start = tree.offset(first, 0)
    cuts[0] = (start, start, f"{indent}with {syntax.torch_name(tree)}.no_grad():{tree.newline}{step}")
    return cuts


def _multiline(tree: Tree, node: cst.CSTNode) -> bool:
    first, last = tree.lines(node)
    return first != last
