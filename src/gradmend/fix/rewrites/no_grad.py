"""A parameter update is not part of the graph: `with torch.no_grad():` around it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.rewrites.rebind import inplace_call
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 7  # only asked for where PyTorch refuses to write to a leaf


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if "leaf" not in facts.message:
        return
    for extra, place, tree, statement in syntax.writing(project, facts, 2):
        for order, unit in enumerate(_units(tree, statement)):
            cuts = wrap(tree, unit, _last(tree, unit))
            if cuts is None:
                continue
            new = tree.replace(*cuts)
            rank = RANK + extra + order
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
    """The last of the lines that go on with the same update: they read `.grad` too, or write to the same tensor."""
    last = tree.lines(unit)[1]
    block = tree.parent(unit)
    if not isinstance(block, (cst.IndentedBlock, cst.Module)):
        return last
    body = list(block.body)
    target = _written(tree, unit)
    for after in body[next(i for i, n in enumerate(body) if n is unit) + 1 :]:
        both = ".grad" in tree.code(unit) and ".grad" in tree.code(after)
        same = bool(target) and _written(tree, after) == target
        if not isinstance(after, cst.SimpleStatementLine) or not (both or same):
            break
        last = tree.lines(after)[1]
    return last


def _written(tree: Tree, line: cst.CSTNode) -> str:
    """The tensor that a line's only statement writes into."""
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
    found: cst.BaseExpression | None = None
    if isinstance(small, cst.AugAssign):
        found = small.target
    elif isinstance(small, cst.Assign) and isinstance(small.targets[0].target, cst.Subscript):
        found = small.targets[0].target
    elif isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) and inplace_call(small.value):
        found = small.value
    return tree.code(syntax.stem(found)) if found is not None else ""


def wrap(tree: Tree, unit: cst.CSTNode, last: int) -> list[Cut] | None:
    """Put lines under no_grad, one step further in."""
    first = tree.lines(unit)[0]
    if tree.text[tree.offset(first, 0) : tree.span(unit)[0]].strip():
        return None
    if _has_long_string(tree, unit):
        return None
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


def unwrap(tree: Tree, block: cst.With) -> list[Cut] | None:
    """Take the lines of a `with` out of it, one step back."""
    if not isinstance(block.body, cst.IndentedBlock) or _has_long_string(tree, block):
        return None
    (first, last), body = tree.lines(block), tree.lines(block.body.body[0])[0]
    outer = tree.indent(block)
    step = tree.indent(block.body.body[0]).removeprefix(outer)
    cuts: list[Cut] = [(tree.offset(first, 0), tree.offset(body, 0), "")]
    for line in range(body, last + 1):
        at = tree.offset(line, 0)
        if tree.line_text(line).startswith(outer + step):
            cuts.append((at, at + len(step), ""))
    return cuts


def _has_long_string(tree: Tree, unit: cst.CSTNode) -> bool:
    """Moving the lines of a string would change it."""
    return any(
        isinstance(n, (cst.SimpleString, cst.FormattedString)) and tree.lines(n)[0] != tree.lines(n)[1]
        for n in syntax.walk(unit)
    )
