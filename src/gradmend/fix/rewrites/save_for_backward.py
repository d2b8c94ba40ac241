"""`ctx.x = x` -> `ctx.save_for_backward(x)`, and `ctx.x` in backward -> `(x,) = ctx.saved_tensors`.

By itself this mends no gradient: PyTorch then refuses the overwritten tensor instead of using it. It is offered beside
the fix of the write, so that the next such write can't pass in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.rewrites.functions import Custom, customs, first_name, hung
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut

NOTE = "PyTorch then refuses a tensor that is overwritten before backward, where an attribute of ctx lets it pass"


def guarded(project: Project, known: Iterable[Facts]) -> Iterator[Candidate]:
    """For each custom Function of the stories, with all the attributes that they name."""
    for custom in customs(project):
        names = [
            f.saved.slot.removeprefix("ctx.")
            for f in known
            if f.saved is not None and f.saved.op == custom.name and f.saved.slot.startswith("ctx.")
        ]
        cuts = _saved(custom, list(dict.fromkeys(names)))
        if cuts:
            title = f"keep it with ctx.save_for_backward in {custom.name}"
            new = custom.tree.replace(*cuts)
            yield Candidate(title, "save_for_backward", 0, {custom.file: new}, NOTE)


def _saved(custom: Custom, names: list[str]) -> list[Cut]:
    backward = custom.methods.get("backward")
    if not names or backward is None:
        return []
    keeping = _kept_instead(custom, names)
    return [*keeping, *_read_instead(custom, backward, names)] if keeping else []


# -- in the method that keeps them -------------------------------------------------------------------
def _kept_instead(custom: Custom, names: list[str]) -> list[Cut]:
    tree, ctx = custom.tree, first_name(custom.keeper)
    values: dict[str, str] = {}
    cuts: list[Cut] = []
    last: cst.Assign | None = None
    for node in tree.inside(custom.keeper):
        pairs = list(hung(node, ctx)) if isinstance(node, cst.Assign) else []
        taken = [(t, v) for t, v in pairs if t.attr.value in names]
        if not taken:
            continue
        assert isinstance(node, cst.Assign)
        if len(node.targets) != 1 or any(t.attr.value in values for t, _ in taken):
            return []  # also something else, or kept twice
        values |= {t.attr.value: tree.code(v) for t, v in taken}
        rest = _rest(custom, node, [t for t, _ in taken])
        if rest is None:
            return []
        cuts.append(tree.cut(node, rest) if rest else tree.without(node))
        last = node
    call = _save_call(custom)
    if last is None or list(values) != names:
        return []
    given = ", ".join(values[n] for n in names)
    if call is not None:
        inputs = {p.name.value for p in custom.keeper.params.params}
        if tree.span(call)[0] < tree.span(last)[0] and not set(values.values()) <= inputs:
            return []  # not made yet where the others are saved
        end = tree.span(call.args[-1].value)[1]
        return [*cuts, (end, end, f", {given}")]
    start, end, rest = cuts.pop()
    if rest:
        return [
            *cuts,
            (start, end, f"{rest}{tree.newline}{tree.indent(last)}{ctx}.save_for_backward({given})"),
        ]
    return [*cuts, tree.cut(last, f"{ctx}.save_for_backward({given})")]


def _rest(custom: Custom, assign: cst.Assign, taken: list[cst.Attribute]) -> str | None:
    """What stays of `ctx.a, ctx.b = x, y` without some of its targets."""
    target, value = assign.targets[0].target, assign.value
    if not isinstance(target, cst.Tuple):
        return ""
    if not isinstance(value, cst.Tuple) or len(value.elements) != len(target.elements):
        return None
    both = zip(target.elements, value.elements, strict=True)
    stay = [(custom.tree.code(t.value), custom.tree.code(v.value)) for t, v in both if t.value not in taken]
    return f"{', '.join(t for t, _ in stay)} = {', '.join(v for _, v in stay)}" if stay else ""


def _save_call(custom: Custom) -> cst.Call | None:
    asked = f"{first_name(custom.keeper)}.save_for_backward"
    for node in custom.tree.inside(custom.keeper):
        if isinstance(node, cst.Call) and syntax.dotted(node.func) == asked and node.args:
            return node
    return None


# -- in backward -------------------------------------------------------------------------------------
def _read_instead(custom: Custom, backward: cst.FunctionDef, names: list[str]) -> list[Cut]:
    tree, ctx = custom.tree, first_name(backward)
    local = {n: n if not syntax.same_names(tree, backward, n) else f"{n}_saved" for n in names}
    cuts = [
        tree.cut(node, local[node.attr.value])
        for node in tree.inside(backward)
        if isinstance(node, cst.Attribute) and syntax.dotted(node.value) == ctx and node.attr.value in names
    ]
    made = [local[n] for n in names]
    for node in tree.inside(backward):
        if not isinstance(node, cst.Assign) or syntax.dotted(node.value) != f"{ctx}.saved_tensors":
            continue
        target = node.targets[0].target
        if isinstance(target, cst.Tuple):
            every = ", ".join([*(tree.code(e.value) for e in target.elements), *made])
            return [*cuts, tree.cut(target, f"({every})" if target.lpar else every)]
    call = _save_call(custom)
    if call is not None:
        first = len(call.args)
        lines = [f"{name} = {ctx}.saved_tensors[{first + i}]" for i, name in enumerate(made)]
    else:
        lines = [f"{', '.join(made) if len(made) > 1 else f'({made[0]},)'} = {ctx}.saved_tensors"]
    return [*cuts, tree.before(_first(backward), *lines)]


def _first(method: cst.FunctionDef) -> cst.CSTNode:
    """The first statement below the docstring."""
    body = list(method.body.body)
    return body[1] if len(body) > 1 and method.get_docstring() is not None else body[0]
