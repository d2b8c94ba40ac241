"""A function that writes to its argument gives the result back: rebound inside, returned at the end.

A forward hook's result takes the place of the module's output; for a helper, the call's line takes it:
`normalise(h)` -> `h = normalise(h)`.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.rewrites.clone_write import written
from gradmend.fix.rewrites.rebind import rebound
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 14


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for nth, event in syntax.events(facts):
        places = list(syntax.spots(project, event.chain[:2]))
        for _, place, tree in places[:1]:
            for statement in tree.statements(place.line, place):
                function = tree.function(statement)
                names = {tree.code(t) for t in written(statement)}
                if function is None or _returns(tree, function) or len(names) != 1:
                    continue
                name = names.pop()
                order = [p.name.value for p in function.params.params]
                cuts = _new(tree, statement, name)
                if name not in order or not cuts:
                    continue
                inside = [*cuts, _at_the_end(tree, function, name)]
                title = f"return the new `{name}` from {function.name.value} (line {place.line})"
                sources = {place.file: tree.replace(*inside)}
                yield Candidate(title, "returned", RANK + nth, sources)
                for _, call, home in places[1:]:
                    bound = order[0] in ("self", "cls")
                    taken = _taken(home, call.line, function.name.value, order.index(name) - bound)
                    if not taken:
                        continue
                    if call.file == place.file:
                        sources = {place.file: tree.replace(*inside, *taken)}
                    else:
                        sources = {place.file: tree.replace(*inside), call.file: home.replace(*taken)}
                    yield Candidate(f"{title}, and take it", "returned", RANK + nth + 1, sources)


def _new(tree: Tree, statement: cst.CSTNode, name: str) -> list[Cut]:
    """The write made out of place; what can't be is done on a copy."""
    first = f"{name}[0]"  # of the tuple that a hook is given
    for _, cuts in rebound(tree, statement, alone=True):
        if any(text.startswith(f"{name} = ") for _, _, text in cuts):
            return cuts
        (start, end, text), *rest = cuts
        if text.startswith(f"{first} = "):
            whole = (start, end, f"{name} = ({text.removeprefix(f'{first} = ')}")
            last = tree.span(statement)[1]
            if end == last:
                return [(start, end, f"{whole[2]}, *{name}[1:])"), *rest]
            return [whole, *rest, (last, last, f", *{name}[1:])")]
    return [tree.before(statement, f"{name} = {name}.clone()")]


def _returns(tree: Tree, function: cst.FunctionDef) -> bool:
    """Does it give something back already, or yield?"""
    for node in tree.inside(function.body):
        if isinstance(node, (cst.Return, cst.Yield)) and tree.function(node) is function:
            return True
    return False


def _at_the_end(tree: Tree, function: cst.FunctionDef, name: str) -> Cut:
    last = function.body.body[-1]
    if not isinstance(function.body, cst.IndentedBlock):
        end = tree.span(last)[1]
        return end, end, f"; return {name}"
    at = tree.offset(tree.lines(last)[1] + 1, 0)
    indent = tree.indent(function.body.body[0])
    gap = "" if tree.text[:at].endswith(("\n", "\r")) else tree.newline
    return at, at, f"{gap}{indent}return {name}{tree.newline}"


def _taken(tree: Tree, line: int, function: str, position: int) -> list[Cut]:
    """`helper(h)` as a statement -> `h = helper(h)`."""
    for statement in tree.statements(line):
        call = statement.value if isinstance(statement, cst.Expr) else None
        if not isinstance(call, cst.Call) or syntax.dotted(call.func).rsplit(".", 1)[-1] != function:
            continue
        given = call.args[position : position + 1]
        if given and given[0].keyword is None and not given[0].star and syntax.is_place(given[0].value):
            start = tree.span(statement)[0]
            return [(start, start, f"{tree.code(given[0].value)} = ")]
    return []
