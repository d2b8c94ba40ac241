"""Tensors made where autograd was off and used where it is on.

- `inference_mode` -> `no_grad`: its tensors may then be used in a graph.
- a view taken under `no_grad` and written later -> taken outside of it.
"""

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
    message = facts.message.lower()
    if "inference" in message:
        yield from _no_grad(project)
    if "no_grad mode" in message or "inference mode" in message:
        for _, place, tree, statement in syntax.writing(project, facts, 2):
            yield from _outside(tree, statement, place.file)


def _no_grad(project: Project) -> Iterator[Candidate]:
    """Each use of inference_mode, then all of them at once."""
    every: dict[str, list[Cut]] = {}
    order = 0
    for file in project.sources:
        tree = project.tree(file)
        for node in tree.nodes if tree else ():
            if not isinstance(node, cst.Call) or not syntax.dotted(node.func).endswith("inference_mode"):
                continue
            assert tree is not None
            cut = tree.cut(node, f"{syntax.torch_name(tree)}.no_grad()")
            every.setdefault(file, []).append(cut)
            title = f"no_grad() in place of inference_mode() (line {tree.lines(node)[0]})"
            yield Candidate(title, "grad_off", RANK + order, {file: tree.replace(cut)})
            order += 1
    if order > 1:
        sources = {f: t.replace(*cuts) for f, cuts in every.items() if (t := project.tree(f))}
        yield Candidate("no_grad() in place of every inference_mode()", "grad_off", RANK + order, sources)


def _outside(tree: Tree, statement: cst.CSTNode, file: str) -> Iterator[Candidate]:
    """The view that this statement writes to, taken in grad mode."""
    target: cst.CSTNode | None = getattr(statement, "target", None) or getattr(statement, "value", None)
    if isinstance(statement, cst.Assign):
        target = statement.targets[0].target
    name = syntax.root_name(target) if target is not None else ""
    for node in tree.inside(tree.scope(statement)):
        if not isinstance(node, cst.With) or not isinstance(node.body, cst.IndentedBlock):
            continue
        asked = node.items[0].item
        mode = syntax.dotted(asked.func) if isinstance(asked, cst.Call) else ""
        if len(node.items) != 1 or not mode.endswith(("no_grad", "inference_mode")):
            continue
        made = {
            t.target.value
            for n in syntax.walk(node.body)
            if isinstance(n, cst.Assign)
            for t in n.targets
            if isinstance(t.target, cst.Name)
        }
        cuts = _dedented(tree, node)
        if name in made and cuts:
            title = f"take the view `{name}` outside of no_grad (line {tree.lines(node)[0]})"
            yield Candidate(title, "grad_off", RANK, {file: tree.replace(*cuts)})


def _dedented(tree: Tree, block: cst.With) -> list[Cut]:
    assert isinstance(block.body, cst.IndentedBlock)
    first, last = tree.lines(block)
    start = tree.lines(block.body.body[0])[0]
    if start == first:
        return []
    outer, inner = tree.indent(block), tree.indent(block.body.body[0])
    cuts: list[Cut] = [(tree.offset(first, 0), tree.offset(first + 1, 0), "")]
    for line in range(first + 1, last + 1):
        at = tree.offset(line, 0)
        if tree.line_text(line).startswith(inner):
            cuts.append((at, at + len(inner), outer))
    return cuts
