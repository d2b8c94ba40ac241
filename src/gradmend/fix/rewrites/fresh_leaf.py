"""A leaf is written to, and its `.grad` is read later: the copy that is written gets a name of its own.

`x[0] = 5; loss = f(x); ...; x.grad` -> `x_new = x.clone(); x_new[0] = 5; loss = f(x_new); ...; x.grad`
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 33
_FIRST = 6  # where the leaf's gradient is read later, no other edit keeps it
_MODULES = ("torch", "F", "nn", "np", "self")
_LEAF = ("grad", "requires_grad", "requires_grad_", "is_leaf", "retain_grad", "zero_grad")


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if "leaf" not in facts.message:
        return
    for extra, place, tree, statement in syntax.writing(project, facts, 2):
        for order, (home, name) in enumerate(_written(tree, statement)):
            if name in _MODULES:
                continue
            fresh = _unused(tree, f"{name}_new")
            cuts = _renamed(tree, _unlooped(tree, home, name), name, fresh)
            if cuts:
                title = f"write to a copy of the leaf `{name}`"
                # A line that reads the gradient itself is an update, and no part of a forward.
                asked = f"{name}.grad" in tree.text and ".grad" not in tree.code(statement)
                rank = (_FIRST if asked else RANK) + extra + order
                yield Candidate(title, "fresh_leaf", rank, {place.file: tree.replace(*cuts)})


def _written(tree: Tree, statement: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, str]]:
    """The statement and the name it writes to; then the statement that made it a view of another name."""
    target: cst.CSTNode | None = getattr(statement, "target", None)
    if isinstance(statement, cst.Assign):
        target = statement.targets[0].target
    elif isinstance(statement, cst.Expr):
        target = statement.value
    if not isinstance(target, cst.BaseExpression):
        return
    stem = syntax.stem(target)
    if isinstance(target, cst.Call) and isinstance(stem, cst.Name) and stem.value in ("torch", "F"):
        stem = syntax.stem(target.args[0].value) if target.args else stem
    if not isinstance(stem, cst.Name):
        return
    yield statement, stem.value
    before = tree.span(statement)[0]
    for node in tree.inside(tree.scope(statement)):
        if not isinstance(node, cst.Assign) or tree.span(node)[0] >= before or len(node.targets) != 1:
            continue
        made = node.targets[0].target
        source = syntax.stem(node.value)
        if isinstance(made, cst.Name) and made.value == stem.value and isinstance(source, cst.Name):
            yield node, source.value


def _unlooped(tree: Tree, home: cst.CSTNode, name: str) -> cst.CSTNode:
    """The outermost loop around the write, so that the copy is made once; the write itself if a loop makes the leaf."""
    found = home
    for above in tree.up(home):
        if isinstance(above, cst.FunctionDef):
            break
        if isinstance(above, (cst.For, cst.While)):
            if any(not syntax.is_read(tree, use) for use in syntax.same_names(tree, above, name)):
                break
            found = above
    return found


def _renamed(tree: Tree, home: cst.CSTNode, name: str, fresh: str) -> list[Cut]:
    """A clone in front of the statement; from there on its name stands wherever the values are meant."""
    start = tree.span(home)[0]
    cuts = [tree.before(home, f"{fresh} = {name}.clone()")]
    for use in syntax.same_names(tree, tree.scope(home), name):
        above = tree.parent(use)
        leaf = isinstance(above, cst.Attribute) and above.value is use and above.attr.value in _LEAF
        written = isinstance(above, cst.AssignTarget)
        if written and tree.span(use)[0] > start:
            break  # another tensor from here on
        if tree.span(use)[0] >= start and not leaf:
            cuts.append(tree.cut(use, fresh))
    if cuts[1:] and cuts[1][0] == start:
        # The statement begins with the name itself: one cut there, not two.
        first, end, text = cuts.pop(1)
        cuts[0] = (first, end, cuts[0][2] + text)
    return cuts if len(cuts) > 1 or cuts[0][0] != cuts[0][1] else []


def _unused(tree: Tree, name: str) -> str:
    taken = {n.value for n in tree.nodes if isinstance(n, cst.Name)}
    while name in taken:
        name += "_"
    return name
