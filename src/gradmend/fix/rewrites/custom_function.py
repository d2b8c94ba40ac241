"""Custom `autograd.Function`s: copy what is hung on `ctx`, and mark inputs that are written in place."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.candidate import Candidate, Project
from gradmend.fix.facts import Facts
from gradmend.fix.rewrites import syntax
from gradmend.fix.tree import Tree

RANK = 35


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for file in project.sources:
        if "Function" not in project.sources[file]:
            continue
        tree = project.tree(file)
        assert tree is not None
        for forward in _forwards(tree):
            yield from _copied(tree, forward, file)
            yield from _marked(tree, forward, file)


def _forwards(tree: Tree) -> Iterator[cst.FunctionDef]:
    for node in tree.nodes:
        if isinstance(node, cst.FunctionDef) and node.name.value in ("forward", "setup_context"):
            home = next((n for n in tree.up(node) if isinstance(n, cst.ClassDef)), None)
            bases = [syntax.dotted(b.value) for b in home.bases] if home else []
            if any(b == "Function" or b.endswith(".Function") for b in bases):
                yield node


def _copied(tree: Tree, forward: cst.FunctionDef, file: str) -> Iterator[Candidate]:
    ctx = _ctx(forward)
    for node in tree.inside(forward):
        if not isinstance(node, cst.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0].target
        if (
            isinstance(target, cst.Attribute)
            and syntax.dotted(target.value) == ctx
            and isinstance(node.value, cst.Name)
        ):
            new = tree.replace(tree.cut(node.value, f"{node.value.value}.clone()"))
            title = f"keep a copy on {ctx} (line {tree.lines(node)[0]})"
            yield Candidate(title, "custom_function", RANK, {file: new})


def _marked(tree: Tree, forward: cst.FunctionDef, file: str) -> Iterator[Candidate]:
    """`x.mul_(2)` on an input needs `ctx.mark_dirty(x)`."""
    ctx = _ctx(forward)
    if f"{ctx}.mark_dirty" in tree.code(forward):
        return
    inputs = {p.name.value for p in forward.params.params[1:]}
    for node in tree.inside(forward):
        name = ""
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            if syntax.is_inplace_name(node.func.attr.value):
                name = syntax.root_name(node.func.value)
        elif isinstance(node, cst.AugAssign):
            name = syntax.root_name(node.target)
        if name not in inputs:
            continue
        statement = next((n for n in tree.up(node) if isinstance(n, cst.SimpleStatementLine)), None)
        if isinstance(node, cst.AugAssign):
            statement = tree.parent(node)  # type: ignore[assignment]
        if statement is None:
            continue
        new = tree.replace(tree.before(statement, f"{ctx}.mark_dirty({name})"))
        yield Candidate(
            f"mark `{name}` dirty: forward writes to it", "custom_function", RANK + 1, {file: new}
        )
        return


def _ctx(forward: cst.FunctionDef) -> str:
    params = forward.params.params
    return params[0].name.value if params else "ctx"
