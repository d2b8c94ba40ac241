"""An edit that hides from autograd (`x.data`, `x.detach()`, `no_grad`) -> its differentiable form.

The hidden edit changes what the forward computes but not what backward believes; the rewritten
statement says the same to both.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.rewrites.functional import forms
from gradmend.fix.rewrites.no_grad import unwrap
from gradmend.fix.rewrites.rebind import rebound
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.tree import Tree

RANK = 12
_LAST = 6


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for extra, place, tree, statement in syntax.writing(project, facts, 2):
        if not isinstance(statement, cst.BaseSmallStatement):
            continue
        yield from _let_out(tree, statement, place.file, RANK + extra + _LAST)
        shown = _seen(tree, statement)
        block = _no_grad_block(tree, statement)
        if block is not None and len(block.body.body) != 1:
            block = None
        if shown is None and block is None:
            continue
        for order, new in enumerate(open_forms(shown or tree.code(statement))):
            rank = RANK + extra + order
            title = f"let autograd see the edit on line {place.line}"
            cut = tree.cut(block if block is not None else statement, _joined(tree, block or statement, new))
            yield Candidate(title, "live_edit", rank, {place.file: tree.replace(cut)})


def _seen(tree: Tree, statement: cst.CSTNode) -> str | None:
    """The statement's text without `.data` and `.detach()` of what it writes to; None where that has neither."""
    start, end = tree.span(statement)
    text = tree.text[start:end]
    drops = []
    for node in syntax.walk(_written_to(statement)):
        if isinstance(node, cst.Attribute) and node.attr.value == "data":
            drops.append((tree.span(node.value)[1] - start, tree.span(node)[1] - start))
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and not node.args:
            method = node.func.attr.value
            if method == "detach":
                drops.append((tree.span(node.func.value)[1] - start, tree.span(node)[1] - start))
    if not drops:
        return None
    for first, last in sorted(drops, reverse=True):
        text = text[:first] + text[last:]
    return text


def _written_to(statement: cst.CSTNode) -> cst.CSTNode:
    """What is assigned to may be cut from the graph on purpose, so it stays as it is."""
    match statement:
        case cst.Assign(targets=[target, *_]):
            return target
        case cst.AugAssign(target=place):
            return place
        case cst.Expr(value=cst.Call(func=function)):
            return function
    return statement


def open_forms(text: str) -> Iterator[list[str]]:
    """The out-of-place forms of a statement given as text, each a list of statements."""
    try:
        tree = Tree(text + "\n")
    except Exception:  # a fragment that stands only in its context
        return
    line = tree.module.body[0] if tree.module.body else None
    if not isinstance(line, cst.SimpleStatementLine):
        return
    statement = line.body[0]
    for _, cuts in rebound(tree, statement, alone=True):
        yield [tree.replace(*cuts).rstrip()]
    for _, new in forms(tree, statement):
        yield [new]
    if isinstance(statement, cst.Assign):
        target = statement.targets[0].target
        if isinstance(target, cst.Subscript):
            home = syntax.stem(target)
            if syntax.is_place(home):
                name = tree.code(home)
                yield [f"{name} = {name}.clone()", text]
        else:
            yield [text]
    elif isinstance(statement, cst.AugAssign) and isinstance(statement.target, cst.Subscript):
        name = tree.code(syntax.stem(statement.target))
        yield [f"{name} = {name}.clone()", text]
    elif isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        home = syntax.stem(statement.value)
        if syntax.is_place(home):
            name = tree.code(home)
            yield [f"{name} = {name}.clone()", text]


def _let_out(tree: Tree, statement: cst.CSTNode, file: str, rank: int) -> Iterator[Candidate]:
    """Several statements under one no_grad: all of them out of it."""
    block = _no_grad_block(tree, statement)
    cuts = unwrap(tree, block) if block is not None else None
    if block is not None and cuts:
        title = f"take the block on line {tree.lines(block)[0]} out of no_grad"
        yield Candidate(title, "live_edit", rank, {file: tree.replace(*cuts)})


def _no_grad_block(tree: Tree, statement: cst.CSTNode) -> cst.With | None:
    """The `with torch.no_grad():` that this statement stands in."""
    line = tree.parent(statement)
    body = tree.parent(line) if line is not None else None
    block = tree.parent(body) if body is not None else None
    if not isinstance(block, cst.With) or not isinstance(body, cst.IndentedBlock):
        return None
    asked = block.items[0].item
    name = syntax.dotted(asked.func) if isinstance(asked, cst.Call) else ""
    return block if name.endswith(("no_grad", "inference_mode")) and len(block.items) == 1 else None


def _joined(tree: Tree, node: cst.CSTNode, statements: list[str]) -> str:
    joint = tree.newline + tree.indent(node) if tree.own_line(node) else "; "
    return joint.join(statements)
