"""A custom Function's forward that writes to its input must say so, and return it: `ctx.mark_dirty(x)`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.rewrites.clone_write import written
from gradmend.fix.rewrites.functions import Custom, customs, first_name
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut

RANK = 32
_ALIKE = ("clone", "detach", "view_as", "contiguous")  # `return x.clone()` returns the values of x


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for custom in customs(project):
        if custom.marks:
            continue
        names, first = _inputs_written(custom)
        if first is None:
            continue
        tree, told = custom.tree, ", ".join(f"`{n}`" for n in names)
        marks = _marks(custom, names, first)
        title = f"mark {told} dirty: the forward of {custom.name} writes to it"
        yield Candidate(title, "mark_dirty", RANK, {custom.file: tree.replace(marks)})
        itself = _returned(custom, names)
        if itself:
            new = tree.replace(marks, *itself)
            yield Candidate(f"{title}, and return it", "mark_dirty", RANK + 1, {custom.file: new})


def _inputs_written(custom: Custom) -> tuple[list[str], cst.CSTNode | None]:
    """The inputs that forward writes to, and the first statement that does."""
    found: dict[str, None] = {}
    first: cst.CSTNode | None = None
    for node in custom.tree.inside(custom.forward):
        if not isinstance(node, cst.BaseSmallStatement):
            continue
        for target in written(node):
            name = custom.tree.code(target)
            if name in custom.inputs:
                found[name] = None
                first = first or node
    return list(found), first


def _marks(custom: Custom, names: list[str], first: cst.CSTNode) -> Cut:
    ctx = first_name(custom.keeper)
    if custom.keeper is custom.forward:
        body = list(custom.forward.body.body)
        top = next((n for n in [first, *custom.tree.up(first)] if n in body), first)
        return custom.tree.before(top, f"{ctx}.mark_dirty({', '.join(names)})")
    # Only setup_context has ctx: it is given the inputs as a tuple.
    given = custom.keeper.params.params[1].name.value
    marked = ", ".join(f"{given}[{custom.inputs.index(n)}]" for n in names)
    return custom.tree.before(custom.keeper.body.body[0], f"{ctx}.mark_dirty({marked})")


def _returned(custom: Custom, names: list[str]) -> list[Cut]:
    """`return x.clone()` -> `return x`: a dirty input has to be an output itself."""
    return [
        custom.tree.cut(node, base)
        for node in custom.tree.inside(custom.forward)
        if isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in _ALIKE
        and (base := syntax.dotted(node.func.value)) in names
        and isinstance(custom.tree.parent(node), (cst.Return, cst.Element))
        and any(isinstance(up, cst.Return) for up in custom.tree.up(node))
    ]
