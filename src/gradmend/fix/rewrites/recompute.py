"""Compute a forward again where its parameters have changed since: after an update, or inside a closure or loop.

`pred = d(fake); d_loss.backward(); opt.step(); g_loss = f(pred)` -> the same with `pred = d(fake)` once more below step().
The later gradient is then that of the updated parameters, which is what such code nearly always means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts, Place
from gradmend.fix.source.tree import Tree

RANK = 18
_INSIDE = 4  # of a second backward: before the graph is kept
NOTE = "the later gradient is taken at the updated parameters, by one more forward"
_DRAWS = re.compile(r"rand|next\(|sample|dropout|open\(|load")
_PARAMETERS = frozenset({"GM104", "GM105", "GM203"})


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if facts.second:
        yield from _inside(project, facts)
    elif facts.saved is not None and (facts.rule in _PARAMETERS or facts.saved.leaf):
        for _, event in syntax.events(facts):
            yield from _after(project, event.chain, facts.saved.chain, facts.backward)
        yield from _inside(project, facts)


# -- after an update -----------------------------------------------------------------------------------
def _after(
    project: Project, update: Sequence[Place], saved: Sequence[Place], backward: Sequence[Place]
) -> Iterator[Candidate]:
    for _, place, tree in syntax.spots(project, tuple(update)):
        here = _line(tree, place)
        for at in backward:
            there = _line(tree, at) if at.file == place.file else None
            block = tree.parent(here) if here is not None else None
            if here is None or there is None or tree.parent(there) is not block or block is None:
                continue
            for made in saved:
                first = _line(tree, made) if made.file == place.file else None
                if first is None or tree.parent(first) is not block:
                    continue
                new = _again(tree, list(block.body), first, here, there)  # type: ignore[attr-defined]
                if new is not None:
                    text, lines = new
                    title = f"compute {syntax.spoken(tree, lines)} again after line {place.line}"
                    yield Candidate(title, "recompute", RANK, {place.file: text}, NOTE)
                    return


def _line(tree: Tree, place: Place) -> cst.CSTNode | None:
    """The statement of a block that a place stands in, by its whole line."""
    for statement in tree.statements(place.line, place):
        line = tree.parent(statement)
        return line if isinstance(line, cst.SimpleStatementLine) else None
    return None


def _again(
    tree: Tree, body: list[cst.CSTNode], first: cst.CSTNode, update: cst.CSTNode, backward: cst.CSTNode
) -> tuple[str, list[cst.CSTNode]] | None:
    """What leads from the line that used the parameters to the later loss, once more below the update."""
    start, middle, end = (
        next(i for i, n in enumerate(body) if n is one) for one in (first, update, backward)
    )
    if not start < middle < end:
        return None
    wanted = {name for line in body[middle + 1 : end + 1] for name in _read(tree, line)}
    kept = _leading(tree, body[:middle], first, wanted)
    texts = [tree.code(line).strip() for line in kept]
    if not kept or any(_DRAWS.search(t) for t in texts):
        return None
    names = {name for line in kept for name in _made(line)}
    goal = next(line for line in body[middle + 1 :] if _read(tree, line) & names)
    at = tree.span(goal)[0]
    joint = tree.newline + tree.indent(goal)
    return tree.replace((at, at, "".join(f"{t}{joint}" for t in texts))), kept


# -- inside a closure or a loop ------------------------------------------------------------------------
def _inside(project: Project, facts: Facts) -> Iterator[Candidate]:
    for place in facts.backward:
        tree = project.tree(place.file)
        for statement in tree.statements(place.line, place) if tree is not None else ():
            assert tree is not None
            home = next(
                (n for n in tree.up(statement) if isinstance(n, (cst.FunctionDef, cst.For, cst.While))), None
            )
            outer = tree.parent(home) if home is not None else None
            if home is None or not isinstance(outer, (cst.IndentedBlock, cst.Module)):
                continue
            if not isinstance(home.body, cst.IndentedBlock):
                continue
            made = None
            if facts.saved is not None and not facts.second:  # only the line that used the parameters
                made = {p.line for p in facts.saved.chain if p.file == place.file}
            stored = facts.carrier.stored if facts.carrier is not None else None
            if facts.second and stored is not None:
                if stored.file != place.file:
                    continue
                made = {stored.line}
            yield from _brought_in(tree, place.file, list(outer.body), home, made, facts.second)


def _brought_in(
    tree: Tree,
    file: str,
    outer: list[cst.CSTNode],
    home: cst.CSTNode,
    wanted: set[int] | None,
    second: bool,
) -> Iterator[Candidate]:
    above = outer[: next(i for i, n in enumerate(outer) if n is home)]
    body = list(home.body.body)  # type: ignore[attr-defined]
    given = (
        {p.name.value for p in syntax.walk(home.params) if isinstance(p, cst.Param)}
        if isinstance(home, cst.FunctionDef)
        else set()
    )
    own = {name for line in body for name in _made(line)} | given
    free = {name for line in body for name in _read(tree, line)} - own
    for first in reversed(above):
        if wanted is None:
            lines = [first] if _made(first) & free and _computes(first) else []
        else:
            lines = _leading(tree, above, first, free) if tree.lines(first)[0] in wanted else []
        texts = [tree.code(line).strip() for line in lines]
        if not lines or any(_DRAWS.search(t) for t in texts):
            continue
        made = {name for line in lines for name in _made(line)}
        goal = next(n for n in body if _read(tree, n) & made)
        at = tree.span(goal)[0]
        joint = tree.newline + tree.indent(goal)
        cuts = [(at, at, "".join(f"{t}{joint}" for t in texts))]
        if not any(_read(tree, n) & made for n in outer if n is not home and n not in lines):
            spans = map(tree.lines, lines)
            cuts += [(tree.offset(top, 0), tree.offset(bottom + 1, 0), "") for top, bottom in spans]
        where = "closure" if isinstance(home, cst.FunctionDef) else "loop"
        title = f"compute {syntax.spoken(tree, lines)} inside the {where}, each time anew"
        rank = _INSIDE if second else RANK + 1
        yield Candidate(title, "recompute", rank, {file: tree.replace(*cuts)}, NOTE)


def _leading(
    tree: Tree, lines: Sequence[cst.CSTNode], first: cst.CSTNode, names: set[str]
) -> list[cst.CSTNode]:
    """The line and those after it that lead from what it makes to these names; none if it does not lead there."""
    flows: list[cst.CSTNode] = []
    tainted: set[str] = set()
    start = next(i for i, n in enumerate(lines) if n is first)
    for line in lines[start:]:
        made, read = _made(line), _read(tree, line)
        if made and (line is first or read & tainted):
            flows.append(line)
            tainted |= made
    wanted = set(names)
    kept: list[cst.CSTNode] = []
    for line in reversed(flows):
        if _made(line) & wanted:
            kept.insert(0, line)
            wanted |= _read(tree, line)
    return kept if kept and kept[0] is first else []


def _computes(line: cst.CSTNode) -> bool:
    """Does it call something, and not just a constructor?"""
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    value = small.value if isinstance(small, cst.Assign) else None
    if value is None or not syntax.has_call(value):
        return False
    name = syntax.dotted(value.func).rsplit(".", 1)[-1] if isinstance(value, cst.Call) else ""
    return not name[:1].isupper()


def _made(line: cst.CSTNode) -> set[str]:
    """The names that a line of one assignment binds."""
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
    if not isinstance(small, cst.Assign):
        return set()
    return {n.value for t in small.targets for n in _targets(t.target)}


def _targets(node: cst.BaseExpression) -> Iterator[cst.Name]:
    if isinstance(node, (cst.Tuple, cst.List)):
        for element in node.elements:
            yield from _targets(element.value)
    elif isinstance(node, cst.Name):
        yield node


def _read(tree: Tree, line: cst.CSTNode) -> set[str]:
    return {n.value for n in syntax.walk(line) if isinstance(n, cst.Name) and syntax.is_read(tree, n)}
