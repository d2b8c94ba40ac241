"""Small questions about expressions that several rewrites ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradmend.fix.source.candidate import Project
from gradmend.fix.source.facts import Event, Facts, Place
from gradmend.fix.source.tree import Tree

# How tightly an expression binds, as the right operand of an operator of that strength.
_BINDS: dict[type, int] = {
    cst.BitOr: 5,
    cst.BitXor: 6,
    cst.BitAnd: 7,
    cst.LeftShift: 8,
    cst.RightShift: 8,
    cst.Add: 9,
    cst.Subtract: 9,
    cst.Multiply: 10,
    cst.MatrixMultiply: 10,
    cst.Divide: 10,
    cst.FloorDivide: 10,
    cst.Modulo: 10,
    cst.Power: 12,
}
_OPERATORS = {"+": 9, "-": 9, "*": 10, "@": 10, "/": 10, "//": 10, "%": 10, "**": 12}
_OPERATORS |= {"|": 5, "^": 6, "&": 7, "<<": 8, ">>": 8}


def operand(tree: Tree, value: cst.BaseExpression, operator: str) -> str:
    """The text of a value as right operand, in parentheses where it needs them."""
    text = tree.code(value)
    if getattr(value, "lpar", ()):
        return text
    tight = 20
    if isinstance(value, cst.BinaryOperation):
        tight = _BINDS[type(value.operator)]
    elif isinstance(value, cst.UnaryOperation):
        tight = 4 if isinstance(value.operator, cst.Not) else 11
    elif isinstance(
        value,
        (cst.Comparison, cst.BooleanOperation, cst.IfExp, cst.Lambda, cst.Yield, cst.NamedExpr, cst.Tuple),
    ):
        tight = 0
    elif isinstance(value, cst.Await):
        tight = 13
    return text if tight > _OPERATORS[operator] else f"({text})"


def is_place(node: cst.CSTNode) -> bool:
    """Can it be assigned to, and read twice without another effect: a name, attribute or item, no calls?"""
    if isinstance(node, cst.Name):
        return True
    if isinstance(node, cst.Attribute):
        return is_place(node.value)
    if isinstance(node, cst.Subscript):
        return is_place(node.value) and not any(has_call(e) for e in node.slice)
    return False


def has_call(node: cst.CSTNode) -> bool:
    return any(isinstance(n, (cst.Call, cst.Await, cst.NamedExpr, cst.Yield)) for n in walk(node))


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from walk(child)


def dotted(node: cst.CSTNode) -> str:
    """`torch.nn.functional.relu` of a chain of names, else an empty string."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr.value}" if head else ""
    return ""


def of_namespace(func: cst.Attribute) -> bool:
    """`torch.relu_`, `F.elu_`, `nn.init.normal_`: functions, whose first argument a method would be of."""
    return dotted(func.value).split(".")[0] in ("torch", "F", "nn", "functional", "init")


def root_name(node: cst.CSTNode) -> str:
    """The name a chain of attributes, items and calls starts from."""
    while not isinstance(node, cst.Name):
        if isinstance(node, (cst.Attribute, cst.Subscript)):
            node = node.value
        elif isinstance(node, cst.Call):
            node = node.func
        else:
            return ""
    return node.value


def stem(node: cst.BaseExpression) -> cst.BaseExpression:
    """What a chain of items and view calls writes through to: `x` of `x[0].view(-1)` and of `nn.init.ones_(x[0])`,
    `self.h` of `self.h[1]`."""
    while True:
        if isinstance(node, cst.Subscript):
            node = node.value
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            node = node.args[0].value if of_namespace(node.func) and node.args else node.func.value
        elif isinstance(node, cst.Attribute) and node.attr.value in (
            "data",
            "T",
            "mT",
            "H",
            "mH",
            "real",
            "imag",
        ):
            node = node.value
        else:
            return node


def is_inplace_name(name: str) -> bool:
    return name.endswith("_") and not name.startswith("_") and not name.endswith("__")


def same_names(tree: Tree, scope: cst.CSTNode, name: str) -> list[cst.Name]:
    """Every use of a name inside a scope (attributes and keywords that merely look alike left out)."""
    out = []
    for node in tree.inside(scope):
        if not isinstance(node, cst.Name) or node.value != name:
            continue
        above = tree.parent(node)
        if isinstance(above, cst.Attribute) and above.attr is node:
            continue
        if isinstance(above, (cst.Arg, cst.Param)) and getattr(above, "keyword", None) is node:
            continue
        out.append(node)
    return out


def is_read(tree: Tree, name: cst.Name) -> bool:
    """Is this use of a name a read (and not the target of an assignment, a loop or a del)?"""
    above = tree.parent(name)
    if isinstance(above, (cst.AssignTarget, cst.Del)):
        return False
    if isinstance(above, (cst.For, cst.CompFor, cst.NamedExpr, cst.AnnAssign)) and above.target is name:
        return False
    if isinstance(above, cst.Element):
        holder = tree.parent(above)
        outer = tree.parent(holder) if holder is not None else None
        return not isinstance(outer, (cst.AssignTarget, cst.For, cst.CompFor))
    return not isinstance(above, (cst.Param, cst.NameItem))


def used_after(tree: Tree, statement: cst.CSTNode, name: str) -> bool:
    """Is the name read after this statement, or earlier in the loop it stands in, unless the loop binds it anew?"""
    scope = tree.scope(statement)
    own = tree.span(statement)
    first = own[1]
    for loop in tree.up(statement):
        if isinstance(loop, cst.While) or (isinstance(loop, cst.For) and name not in _bound(loop)):
            first = tree.span(loop)[0]
        if isinstance(loop, (cst.FunctionDef, cst.For, cst.While)):
            break
    for use in same_names(tree, scope, name):
        at = tree.span(use)[0]
        if at >= first and not own[0] <= at < own[1] and is_read(tree, use):
            return True
    return False


def _bound(loop: cst.For) -> set[str]:
    return {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}


def torch_name(tree: Tree) -> str:
    """What this file calls torch."""
    for node in tree.nodes:
        if (
            isinstance(node, cst.ImportAlias)
            and isinstance(tree.parent(node), cst.Import)
            and dotted(node.name) == "torch"
        ):
            return node.evaluated_alias or "torch"
    return "torch"


def spoken(tree: Tree, statements: Sequence[cst.CSTNode]) -> str:
    """ "line 5", "lines 19-21", "lines 5 and 9-11": a block goes by its first and last line, its header alone is no block."""
    runs: list[list[tuple[int, int]]] = []
    for first, last in sorted(tree.lines(one) for one in statements):
        if runs and first == runs[-1][-1][1] + 1:
            runs[-1].append((first, last))
        else:
            runs.append([(first, last)])
    parts: list[str] = []
    for run in runs:
        (first, _), (start, last) = run[0], run[-1]
        if first < start == last == first + 1:
            parts += [str(first), str(last)]  # two lines of their own
        else:
            parts.append(str(first) if first == last else f"{first}-{last}")
    *before, end = parts
    told = f"{', '.join(before)} and {end}" if before else end
    return f"line {told}" if told.isdigit() else f"lines {told}"


def events(facts: Facts) -> Iterator[tuple[int, Event]]:
    yield from enumerate(facts.writes[:6])


def spots(project: Project, chain: tuple[Place, ...]) -> Iterator[tuple[int, Place, Tree]]:
    """The lines of a call chain that may be edited, innermost first, with their depth."""
    for depth, place in enumerate(chain):
        tree = project.tree(place.file)
        if tree is not None:
            yield depth, place, tree


def writing(
    project: Project, facts: Facts, reach: int | None = None
) -> Iterator[tuple[int, Place, Tree, cst.CSTNode]]:
    """Each statement that wrote, or called what wrote (`reach` lines up), and how much later than the first it is tried."""
    for nth, event in events(facts):
        for depth, place, tree in spots(project, event.chain[:reach]):
            for statement in tree.statements(place.line, place):
                yield nth + 2 * depth, place, tree, statement
