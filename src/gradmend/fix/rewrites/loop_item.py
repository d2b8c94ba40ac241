"""A loop variable written in place is an item of some list or dict: put the new tensor back there.

`for w, g in zip(fast, grads): w -= g` -> `for i, (w, g) in enumerate(zip(fast, grads)): fast[i] = w - g`
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.rewrites.rebind import rebound
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 9  # a rebound loop variable alone would lose the value, so this comes first where it applies


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for extra, place, tree, statement in syntax.writing(project, facts):
        ways = [*_put_back(tree, statement), *_through_index(tree, statement)]
        for order, (title, cuts) in enumerate(ways):
            new = tree.replace(*cuts)
            yield Candidate(title, "loop_item", RANK + extra + order, {place.file: new})


def _put_back(tree: Tree, statement: cst.CSTNode) -> Iterator[tuple[str, list[Cut]]]:
    written = _written_name(statement)
    loop = next((n for n in tree.up(statement) if isinstance(n, cst.For)), None)
    if written is None or loop is None:
        return
    home = _home(tree, loop, written)
    if home is None:
        return
    item, header = home
    for _, cuts in rebound(tree, statement, alone=True):
        (start, end, new), *rest = cuts
        if start != tree.span(statement)[0]:
            continue
        if not _read_again(tree, statement, loop, written):
            new = new.removeprefix(f"{written} = ")
        yield f"put the new tensor back into `{item}`", [*header, (start, end, f"{item} = {new}"), *rest]
        return


def _through_index(tree: Tree, statement: cst.CSTNode) -> Iterator[tuple[str, list[Cut]]]:
    """Rows that iteration gives may not be written (they are views of one call); `x[i]` may."""
    written = _written_name(statement)
    loop = next((n for n in tree.up(statement) if isinstance(n, cst.For)), None)
    if written is None or loop is None or not isinstance(loop.body, cst.IndentedBlock):
        return
    home = _home(tree, loop, written)
    if home is None or _by_key(tree, loop.target, loop.iter, written) is not None:
        return
    item, header = home
    first = loop.body.body[0]
    start = tree.span(first)[0]
    yield (
        f"write through `{item}`",
        [*header, (start, start, f"{written} = {item}{tree.newline}{tree.indent(first)}")],
    )


def _read_again(tree: Tree, statement: cst.CSTNode, loop: cst.For, name: str) -> bool:
    end = tree.span(statement)[1]
    return any(tree.span(n)[0] >= end for n in syntax.same_names(tree, loop.body, name))


def _written_name(statement: cst.CSTNode) -> str | None:
    if isinstance(statement, cst.AugAssign) and isinstance(statement.target, cst.Name):
        return statement.target.value
    if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        name = syntax.stem(statement.value)
        return name.value if isinstance(name, cst.Name) else None
    return None


def _home(tree: Tree, loop: cst.For, name: str) -> tuple[str, list[Cut]] | None:
    """The item the loop variable came from, and the edits that give the loop an index."""
    target, iterated = loop.target, loop.iter
    keyed = _by_key(tree, target, iterated, name)
    if keyed is not None:
        return keyed, []
    if isinstance(iterated, cst.Call) and isinstance(iterated.func, cst.Attribute):
        return None
    if (
        isinstance(iterated, cst.Call)
        and syntax.dotted(iterated.func) == "enumerate"
        and isinstance(target, cst.Tuple)
    ):
        outer = [e.value for e in target.elements]
        if len(outer) != 2 or not isinstance(outer[0], cst.Name) or not iterated.args:
            return None
        source = _source(outer[1], iterated.args[0].value, name)
        return None if source is None else (f"{tree.code(source)}[{outer[0].value}]", [])
    source = _source(target, iterated, name)
    if source is None or not syntax.is_place(source):
        return None
    index = _fresh(tree, loop)
    start, end = tree.span(target)
    shown = tree.code(target)
    if isinstance(target, cst.Tuple) and not target.lpar:
        shown = f"({shown})"
    cuts = [(start, end, f"{index}, {shown}"), tree.cut(iterated, f"enumerate({tree.code(iterated)})")]
    return f"{tree.code(source)}[{index}]", cuts


def _by_key(tree: Tree, target: cst.BaseExpression, iterated: cst.BaseExpression, name: str) -> str | None:
    """`for k, v in d.items()`: `d[k]`; the same inside `zip(...)` and `enumerate(...)`."""
    if not isinstance(target, cst.Tuple) or not isinstance(iterated, cst.Call):
        return None
    parts = [e.value for e in target.elements]
    if isinstance(iterated.func, cst.Attribute):
        if iterated.func.attr.value != "items" or iterated.args or len(parts) != 2:
            return None
        if not isinstance(parts[1], cst.Name) or parts[1].value != name:
            return None
        return f"{tree.code(iterated.func.value)}[{tree.code(parts[0])}]"
    called = syntax.dotted(iterated.func)
    if called not in ("zip", "enumerate"):
        return None
    inner = [a.value for a in iterated.args]
    if called == "enumerate":
        parts = parts[1:]
    found = (_by_key(tree, one, of, name) for one, of in zip(parts, inner, strict=False))
    return next((home for home in found if home is not None), None)


def _source(target: cst.BaseExpression, iterated: cst.BaseExpression, name: str) -> cst.BaseExpression | None:
    if isinstance(target, cst.Name) and target.value == name and syntax.is_place(iterated):
        return iterated
    if (
        isinstance(target, cst.Tuple)
        and isinstance(iterated, cst.Call)
        and syntax.dotted(iterated.func) == "zip"
    ):
        for element, arg in zip(target.elements, iterated.args, strict=False):
            if (
                isinstance(element.value, cst.Name)
                and element.value.value == name
                and syntax.is_place(arg.value)
            ):
                return arg.value
    return None


def _fresh(tree: Tree, loop: cst.For) -> str:
    scope = tree.scope(loop)
    for name in ("i", "j", "k", "idx", "index"):
        if not syntax.same_names(tree, scope, name):
            return name
    return "item_index"
