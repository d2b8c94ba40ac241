"""Edits that mean another gradient: shown beside the proven one, for the author to choose, never chosen for them.

State that goes from one iteration to the next is detached (truncated backpropagation through time).
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.tree import Tree

ALONE = "gradients of earlier losses are not added again; no graph of earlier steps is kept"
NOT_TRAINED = (
    "it cuts the gradient: none goes through the forward that made it, for which it is a constant then"
)
DETACHED = "it cuts the gradient through time: none goes from a loss to the steps before the last backward(), whose graph is not kept"

_FORMS = ("{0}.detach()", "tuple(s.detach() for s in {0})")


# -- detach what is carried over ---------------------------------------------------------------------
def carried(project: Project, facts: Facts) -> Iterator[Candidate]:
    yield from _totals(project, facts)
    for place in facts.backward:
        tree = project.tree(place.file)
        for statement in tree.statements(place.line, place) if tree else ():
            assert tree is not None
            loop = next((n for n in tree.up(statement) if isinstance(n, (cst.For, cst.While))), None)
            names = _carried(tree, loop) if loop is not None and tree.own_line(statement) else []
            if not names:
                continue
            joint = tree.newline + tree.indent(statement)
            at = tree.span(statement)[1]
            for form in _FORMS:
                text = "".join(f"{joint}{name} = {form.format(name)}" for name in names)
                told = ", ".join(f"`{n}`" for n in names)
                title = f"detach {told} after the backward() on line {place.line}"
                yield Candidate(title, "detach", 0, {place.file: tree.replace((at, at, text))}, DETACHED)
    yield from _held(project)


def made_once(project: Project, facts: Facts) -> Iterator[Candidate]:
    """What is made before the loop and used in each iteration: `old = net(x)` -> `old = net(x).detach()`."""
    for _, place, tree in syntax.spots(project, facts.saved.chain if facts.saved is not None else ()):
        for statement in tree.statements(place.line, place):
            if _goes_on(tree, statement):
                continue  # a step in time: cut there, it would go back no step at all
            for assign in _flow(tree, statement):
                target, value = assign.targets[0].target, assign.value
                code = tree.code(value)
                tight = isinstance(value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
                new = tree.replace(tree.cut(value, f"{code}.detach()" if tight else f"({code}).detach()"))
                title = f"detach `{tree.code(target)}` where it is made (line {tree.lines(assign)[0]})"
                yield Candidate(title, "detach", 0, {place.file: new}, NOT_TRAINED)


def _goes_on(tree: Tree, statement: cst.CSTNode) -> bool:
    """`h = cell(x, h)` in a loop."""
    made = {tree.code(n) for t in getattr(statement, "targets", ()) for n in _targets(t.target)}
    loops = [n for n in tree.up(statement) if isinstance(n, (cst.For, cst.While))]
    return any(made & set(_carried(tree, loop)) for loop in loops)


def _flow(tree: Tree, first: cst.CSTNode) -> Iterator[cst.Assign]:
    """The assignment, and those of its block that go on from what it makes: a distribution has no detach()."""
    line = tree.parent(first)
    block = tree.parent(line) if line is not None else None
    if not isinstance(block, (cst.IndentedBlock, cst.Module)):
        return
    made: set[str] = set()
    for below in block.body[next(i for i, n in enumerate(block.body) if n is line) :]:
        small = below.body[0] if isinstance(below, cst.SimpleStatementLine) else None
        if not isinstance(small, cst.Assign) or len(small.targets) != 1:
            continue
        target = small.targets[0].target
        read = {n.value for n in syntax.walk(small.value) if isinstance(n, cst.Name)}
        if isinstance(target, (cst.Name, cst.Attribute)) and (small is first or read & made):
            made.add(tree.code(target))
            yield small


def _totals(project: Project, facts: Facts) -> Iterator[Candidate]:
    """`total += loss; total.backward()` in a loop -> `total += loss.item(); loss.backward()`: each loss goes back once."""
    for place in facts.backward:
        tree = project.tree(place.file)
        for statement in tree.statements(place.line, place) if tree else ():
            assert tree is not None
            call = statement.value if isinstance(statement, cst.Expr) else None
            root = (
                call.func.value
                if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute)
                else None
            )
            for node in tree.inside(tree.scope(statement)) if isinstance(root, cst.Name) else ():
                if not isinstance(node, cst.AugAssign) or not isinstance(node.value, cst.Name):
                    continue
                if root is None or tree.code(node.target) != tree.code(root):
                    continue
                loss = node.value.value
                cuts = [tree.cut(node.value, f"{loss}.item()"), tree.cut(root, loss)]
                title = f"call backward() on `{loss}` alone (line {place.line}), and let `{tree.code(root)}` be a number"
                yield Candidate(title, "detach", 0, {place.file: tree.replace(*cuts)}, ALONE)


def _carried(tree: Tree, loop: cst.For | cst.While) -> list[str]:
    """Names that an iteration reads before it makes them anew."""
    bound = (
        {n.value for n in syntax.walk(loop.target) if isinstance(n, cst.Name)}
        if isinstance(loop, cst.For)
        else set()
    )
    found: dict[str, None] = {}
    for assign in tree.inside(loop.body):
        if not isinstance(assign, cst.Assign):
            continue
        targets = [n for t in assign.targets for n in _targets(t.target)]
        for target in targets:
            name = tree.code(target)
            uses = [
                n
                for n in tree.inside(loop.body)
                if type(n) is type(target) and tree.code(n) == name and n is not target
            ]
            read = [n for n in uses if not isinstance(n, cst.Name) or syntax.is_read(tree, n)]
            end = tree.span(assign)[1]
            if name not in bound and any(tree.span(n)[0] < end for n in read):
                found[name] = None
    return list(found)


def _targets(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(node, (cst.Tuple, cst.List)):
        for element in node.elements:
            yield from _targets(element.value)
    elif isinstance(node, cst.Name) or (isinstance(node, cst.Attribute) and syntax.is_place(node)):
        yield node


def _held(project: Project) -> Iterator[Candidate]:
    """`out, self.h = rnn(x, self.h)` -> `out, self.h = rnn(x, self.h.detach())`; of an LSTM's pair, each."""
    for file in project.sources:
        tree = project.tree(file)
        for node in tree.nodes if tree else ():
            if not isinstance(node, cst.Assign) or not syntax.has_call(node.value):
                continue
            assert tree is not None
            targets = [n for t in node.targets for n in _targets(t.target)]
            names = {tree.code(n) for n in targets if isinstance(n, cst.Attribute)}
            reads = [
                n for n in syntax.walk(node.value) if isinstance(n, cst.Attribute) and tree.code(n) in names
            ]
            if not reads:
                continue
            told = ", ".join(dict.fromkeys(f"`{tree.code(n)}`" for n in reads))
            title = f"detach {told} where line {tree.lines(node)[0]} goes on from it"
            for form in _FORMS:
                cuts = [tree.cut(n, form.format(tree.code(n))) for n in reads]
                yield Candidate(title, "detach", 1, {file: tree.replace(*cuts)}, DETACHED)
