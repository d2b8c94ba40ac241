"""Index assignment as a new tensor: `x[x < 0] = 0` -> `x = x.masked_fill(x < 0, 0)`, `x[i] = v` -> index_put."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.tree import Tree

RANK = 24
_WHOLE = 24  # these copy the whole tensor for one row of it: a clone of what is saved costs less


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for extra, place, tree, statement in syntax.writing(project, facts):
        for order, (title, new) in enumerate(forms(tree, statement)):
            text = tree.replace(tree.cut(statement, new))
            rank = RANK + extra + order + (_WHOLE if "scatter" in title or "index_put" in title else 0)
            yield Candidate(f"{title} (line {place.line})", "functional", rank, {place.file: text})


def forms(tree: Tree, statement: cst.CSTNode) -> Iterator[tuple[str, str]]:
    """Each out-of-place form of `x[index] = value`."""
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return
    target = statement.targets[0].target
    if not isinstance(target, cst.Subscript) or not syntax.is_place(target.value) or len(target.slice) != 1:
        return
    if isinstance(target.value, cst.Attribute) and target.value.attr.value == "data":
        return
    x, value = tree.code(target.value), tree.code(statement.value)
    index = target.slice[0].slice
    if isinstance(index, cst.Slice):
        if index.step is None:
            ends = ", ".join(
                f"{word}={tree.code(end)}"
                for word, end in (("start", index.lower), ("end", index.upper))
                if end is not None
            )
            yield (
                "slice_scatter into a new tensor",
                f"{x} = {x}.slice_scatter({value}, 0{', ' + ends if ends else ''})",
            )
        return
    if not isinstance(index, cst.Index):
        return
    at = tree.code(index.value)
    if _number(statement.value):
        if _mask(index.value):
            yield "masked_fill into a new tensor", f"{x} = {x}.masked_fill({at}, {value})"
            return
    elif _mask(index.value):
        yield "torch.where into a new tensor", f"{x} = {syntax.torch_name(tree)}.where({at}, {value}, {x})"
    if not isinstance(index.value, cst.Tuple) and not _mask(index.value) and not _number(statement.value):
        yield "select_scatter into a new tensor", f"{x} = {x}.select_scatter({value}, 0, {at})"
        yield "index_put into a new tensor", f"{x} = {x}.index_put(({at},), {value})"


def _mask(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Comparison):
        return True
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.BitInvert)
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, (cst.BitAnd, cst.BitOr, cst.BitXor))
    name = (
        syntax.dotted(node.func if isinstance(node, cst.Call) else node).lower()
        or syntax.root_name(node).lower()
    )
    return any(word in name for word in ("mask", "pad", "isnan", "isinf", "keep", "drop", "valid", "bool"))


def _number(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.UnaryOperation):
        return _number(node.expression)
    if isinstance(node, cst.Call):
        return syntax.dotted(node.func) == "float"
    if isinstance(node, cst.Name):
        return node.value.isupper()
    return isinstance(node, (cst.Integer, cst.Float)) or syntax.dotted(node) in (
        "math.inf",
        "torch.inf",
        "np.inf",
    )
