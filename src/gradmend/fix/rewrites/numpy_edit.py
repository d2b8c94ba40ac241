"""An activation edited through numpy -> the same edit of the tensor, seen by autograd.

`a = h.detach().numpy(); a[a < 0] = 0` -> `h = h.masked_fill(h < 0, 0); a = h.detach().numpy()`
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.rewrites.live_edit import open_forms
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 14
_NOTE = (
    "the forward went on with the edited values, so autograd is shown the edit. "
    "If only the array was meant to change, write .numpy().copy() instead: another forward, and another loss."
)
_FORMS = 2  # ways to write each statement


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for nth, event in syntax.events(facts):
        for _, place, tree in syntax.spots(project, event.chain[:2]):
            for statement in tree.statements(place.line, place):
                for door in _doors(tree, statement):
                    for order in range(_FORMS):
                        cuts = _shown(tree, door, order)
                        if cuts:
                            title = f"edit the tensor, not its numpy array (line {tree.lines(door)[0]})"
                            new = tree.replace(*cuts)
                            yield Candidate(title, "numpy_edit", RANK + nth + order, {place.file: new}, _NOTE)


def _doors(tree: Tree, statement: cst.CSTNode) -> Iterator[cst.Assign]:
    """`a = h.detach().numpy()`: this statement, or where the name that it writes into was made."""
    if _tensor(statement) is not None:
        assert isinstance(statement, cst.Assign)
        yield statement
        return
    target = getattr(statement, "target", None) or getattr(statement, "value", None)
    if isinstance(statement, cst.Assign):
        target = statement.targets[0].target
    name = syntax.root_name(target) if target is not None else ""
    for node in tree.inside(tree.scope(statement)):
        if isinstance(node, cst.Assign) and _tensor(node) is not None and _name(node) == name:
            yield node


def _tensor(statement: cst.CSTNode) -> cst.BaseExpression | None:
    """`h` of `a = h.detach().cpu().numpy()`."""
    if not isinstance(statement, cst.Assign) or not _name(statement):
        return None
    node = statement.value
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or node.args:
        return None
    if node.func.attr.value != "numpy":
        return None
    base = syntax.stem(node)
    return base if syntax.is_place(base) else None


def _name(statement: cst.Assign) -> str:
    target = statement.targets[0].target
    return target.value if len(statement.targets) == 1 and isinstance(target, cst.Name) else ""


def _shown(tree: Tree, door: cst.Assign, order: int) -> list[Cut]:
    line = tree.parent(door)
    block = tree.parent(line) if line is not None else None
    tensor = _tensor(door)
    if not isinstance(block, (cst.IndentedBlock, cst.Module)) or tensor is None or not tree.own_line(door):
        return []
    name, home = _name(door), tree.code(tensor)
    body = list(block.body)
    after = body[next(i for i, n in enumerate(body) if n is line) + 1 :]
    cuts: list[Cut] = []
    last: cst.CSTNode | None = None
    for later in after:
        small = later.body[0] if isinstance(later, cst.SimpleStatementLine) and len(later.body) == 1 else None
        if small is None or not _writes(small, name):
            continue
        start = tree.span(small)[0]
        text = tree.code(small)
        for use in reversed(syntax.same_names(tree, small, name)):
            first, end = tree.span(use)
            text = text[: first - start] + home + text[end - start :]
        forms = list(open_forms(text))
        if not forms:
            return []
        joint = tree.newline + tree.indent(small)
        cuts.append(tree.cut(small, joint.join(forms[min(order, len(forms) - 1)])))
        last = later
    if last is None:
        return []
    # The array is taken after the edit, so that it shows it.
    row = tree.lines(line)[0] if line is not None else 0
    whole = tree.offset(row, 0), tree.offset(tree.lines(door)[1] + 1, 0)
    at = tree.span(last)[1]
    return [*cuts, (*whole, ""), (at, at, f"{tree.newline}{tree.indent(door)}{tree.code(door)}")]


def _writes(statement: cst.CSTNode, name: str) -> bool:
    target: cst.CSTNode | None = None
    if isinstance(statement, cst.AugAssign):
        target = statement.target
    elif isinstance(statement, cst.Assign):
        target = statement.targets[0].target
        if not isinstance(target, cst.Subscript):
            return False
    return target is not None and syntax.root_name(target) == name
