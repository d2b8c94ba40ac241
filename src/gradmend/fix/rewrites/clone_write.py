"""Write into a fresh copy: `x = x.clone()` in front of the write, or a cloned argument of the call that writes."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.tree import Tree

RANK = 30


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for nth, event in syntax.events(facts):
        for depth, place, tree in syntax.spots(project, event.chain):
            for statement in tree.statements(place.line, place):
                rank = RANK + nth + 10 * depth
                for target in written(statement):
                    name = tree.code(target)
                    if isinstance(target, cst.Name) and not (
                        syntax.used_after(tree, statement, name) or _used_within(statement, target)
                    ):
                        continue  # nobody would read the copy: the write would be lost
                    new = tree.replace(tree.before(statement, f"{name} = {name}.clone()"))
                    title = f"clone `{name}` before line {place.line} writes to it"
                    yield Candidate(title, "clone_write", rank, {place.file: new})
                if depth or not event.direct:
                    yield from _arguments(tree, statement, place.file, place.line, rank + 4)


def written(statement: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The tensors that a statement writes into, by name."""
    found: list[cst.BaseExpression] = []
    if isinstance(statement, cst.Assign):
        found += [t.target for t in statement.targets if isinstance(t.target, cst.Subscript)]
    if isinstance(statement, cst.AugAssign):
        found.append(statement.target)
    for node in syntax.walk(statement) if isinstance(statement, cst.BaseSmallStatement) else ():
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if syntax.is_inplace_name(node.func.attr.value):
                library = syntax.dotted(node.func.value).split(".")[0] in ("torch", "F", "nn")
                found += [node.args[0].value] if library and node.args else [node.func.value]
            for arg in node.args:
                if arg.keyword is not None and arg.keyword.value in ("out", "inplace"):
                    found.append(arg.value if arg.keyword.value == "out" else node.args[0].value)
    seen: set[str] = set()
    for target in found:
        home = syntax.stem(target)
        text = cst.Module([]).code_for_node(home)
        if syntax.is_place(home) and text not in seen:
            seen.add(text)
            yield home


def _used_within(statement: cst.CSTNode, target: cst.Name) -> bool:
    """`return x.add_(1)` and `y = x.relu_()` hand the result on themselves."""
    return not isinstance(statement, (cst.Expr, cst.AugAssign)) and not (
        isinstance(statement, cst.Assign)
        and any(syntax.root_name(t.target) == target.value for t in statement.targets)
    )


def _arguments(tree: Tree, statement: cst.CSTNode, file: str, line: int, rank: int) -> Iterator[Candidate]:
    """A library, or a function further in, writes into what it was given: give it a copy."""
    if not isinstance(statement, cst.BaseSmallStatement):
        return
    order = 0
    for call in syntax.walk(statement):
        if not isinstance(call, cst.Call):
            continue
        for arg in call.args:
            if arg.star or isinstance(arg.value, (cst.SimpleString, cst.Integer, cst.Float, cst.Lambda)):
                continue
            text = tree.code(arg.value)
            if isinstance(arg.value, (cst.BinaryOperation, cst.UnaryOperation)) and not arg.value.lpar:
                text = f"({text})"
            new = tree.replace(tree.cut(arg.value, f"{text}.clone()"))
            title = f"give the call on line {line} a clone of `{tree.code(arg.value)}`"
            yield Candidate(title, "clone_write", rank + order, {file: new})
            order += 1
            if order > 5:
                return
