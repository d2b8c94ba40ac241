"""State that crosses from one backward call to the next is cut there, once: what lies within one backward stays whole.

`loss.backward(); opt.step()` -> the same with `net.h = net.h.detach()` below it. Where no expression there reaches the
state, it is cut where it is read or stored; whether that is the same place in time, the trial shows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree
from gradmend.model import Carrier, Frame

RANK = 2
NOTE = (
    "truncated backpropagation through time: each backward() goes back to the state that the one before it left, "
    "which is a constant. What plain PyTorch computed before it failed stays as it was, to the last bit. To train "
    "through all of it instead, add the losses and call backward() once, before the update."
)
_CUT = ("carried", "collected", "shared", "once")
_UPDATES = ("step", "zero_grad", "update")


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    held = facts.carrier
    if not facts.second or held is None:
        return
    if held.how == "in-place":
        yield from _without_history(project, held)
    elif held.how in _CUT:
        yield from _after_backward(project, facts, held)
        yield from _where_stored(project, held)


# -- at the boundary -----------------------------------------------------------------------------------
def _after_backward(project: Project, facts: Facts, held: Carrier) -> Iterator[Candidate]:
    for tree, statement, file in boundaries(project, facts, held):
        for order, text in enumerate(_statements(tree, statement, held)):
            names = ", ".join(f"`{path}`" for path, _ in held.places)
            title = f"detach {names} once, after line {tree.lines(statement)[1]}"
            yield Candidate(
                title, "boundary", RANK + order, {file: tree.replace(below(tree, statement, text))}, NOTE
            )


def boundaries(project: Project, facts: Facts, held: Carrier) -> Iterator[tuple[Tree, cst.CSTNode, str]]:
    """The statement after which the state has crossed: the failing backward in the function that spells the state,
    with the updates that follow it."""
    for place in facts.backward:
        if not held.places or place.file != held.file or place.function != (held.home or "<module>"):
            continue
        tree = project.tree(place.file)
        for statement in tree.statements(place.line, place) if tree is not None else ():
            assert tree is not None
            last = _last_update(tree, statement)
            line = tree.parent(last)
            if isinstance(line, cst.SimpleStatementLine) and tree.own_line(line.body[0]):
                yield tree, last, place.file


def below(tree: Tree, statement: cst.CSTNode, text: str) -> Cut:
    """Insert a statement on a line of its own, below this one and its comment."""
    last = tree.lines(statement)[1]
    end = tree.offset(last + 1, 0)
    if tree.line_text(last).endswith(("\n", "\r")):
        return end, end, f"{tree.indent(statement)}{text}{tree.newline}"
    return end, end, f"{tree.newline}{tree.indent(statement)}{text}"


def _last_update(tree: Tree, statement: cst.CSTNode) -> cst.CSTNode:
    """The last of the updates below a backward, in its block: `opt.step()`, `opt.zero_grad()`, `scaler.update()`."""
    line = tree.parent(statement)
    block = tree.parent(line) if line is not None else None
    if not isinstance(block, (cst.IndentedBlock, cst.Module)):
        return statement
    below = block.body[next(i for i, n in enumerate(block.body) if n is line) + 1 :]
    last = statement
    for one in below:
        small = one.body[0] if isinstance(one, cst.SimpleStatementLine) and len(one.body) == 1 else None
        if small is None or not _updates(small):
            if not isinstance(small, cst.Expr):
                break
            continue  # a clip or a print between backward() and step()
        last = small
    return last


def _updates(small: cst.CSTNode) -> bool:
    call = small.value if isinstance(small, cst.Expr) else None
    return isinstance(call, cst.Call) and syntax.dotted(call.func).rsplit(".", 1)[-1] in _UPDATES


def _statements(tree: Tree, statement: cst.CSTNode, held: Carrier) -> Iterator[str]:
    yield held.detached
    if any(form == "tuple" for _, form in held.places) or len(held.places) != 1:
        return
    (path, form), *_ = held.places
    if form == "item":
        # Every item of the container: its others may be carried over as well.
        whole = path[: path.rindex("[")]
        yield f"{whole} = {{k: v.detach() for k, v in {whole}.items()}}"


# -- where no expression at the backward reaches it ----------------------------------------------------
def _where_stored(project: Project, held: Carrier) -> Iterator[Candidate]:
    frame = held.stored
    tree = project.tree(frame.file) if frame is not None else None
    if frame is None or tree is None:
        return
    name = _name(held)
    for statement in _at(tree, frame):
        if held.how == "collected":
            yield from _collected(tree, statement, frame)
        reads = [n for n in syntax.walk(_value(statement)) if _is_place(n) and tree.code(n) == name]
        if reads:
            cuts = [tree.cut(n, f"{name}.detach()") for n in reads]
            title = f"detach `{name}` where line {frame.line} goes on from it"
            yield Candidate(title, "boundary", RANK + 3, {frame.file: tree.replace(*cuts)}, NOTE)
        yield from _each_call(tree, statement, frame, name)


def _each_call(tree: Tree, statement: cst.CSTNode, frame: Frame, name: str) -> Iterator[Candidate]:
    """The function that goes on from the state begins with it cut: right where each backward calls it once."""
    home = tree.function(statement)
    if home is None or not isinstance(home.body, cst.IndentedBlock):
        return
    for stop in _yields(tree, home):
        title = f"detach `{name}` after line {tree.lines(stop)[1]}, where `{home.name.value}` goes on"
        new = tree.replace(below(tree, stop, f"{name} = {name}.detach()"))
        yield Candidate(title, "boundary", RANK + 3, {frame.file: new}, NOTE)
    first = _below_declarations(home.body)
    if first is None or (name.startswith("self.") is False and not name.isidentifier()):
        return
    tests = f"if {name} is not None:{tree.newline}{tree.indent(first)}    {name} = {name}.detach()"
    for order, text in enumerate((f"{name} = {name}.detach()", tests)):
        at = tree.span(first)[0]
        joint = tree.newline + tree.indent(first)
        title = f"detach `{name}` where `{home.name.value}` begins"
        new = tree.replace((at, at, f"{text}{joint}"))
        yield Candidate(title, "boundary", RANK + 4 + order, {frame.file: new}, NOTE)


def _yields(tree: Tree, home: cst.FunctionDef) -> Iterator[cst.CSTNode]:
    """The statements at which a generator waits."""
    for node in tree.inside(home.body):
        small = isinstance(node, (cst.Expr, cst.Assign)) and isinstance(node.value, cst.Yield)
        if small and tree.own_line(node):
            yield node


def _below_declarations(block: cst.IndentedBlock) -> cst.CSTNode | None:
    for line in block.body:
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        text = isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString)
        if not text and not isinstance(small, (cst.Nonlocal, cst.Global)):
            return line
    return None


def _collected(tree: Tree, statement: cst.CSTNode, frame: Frame) -> Iterator[Candidate]:
    """`self.memory.append(k)` -> `self.memory.append(k.detach())`."""
    call = statement.value if isinstance(statement, cst.Expr) else None
    if not isinstance(call, cst.Call) or not call.args:
        return
    value = call.args[-1].value
    code = tree.code(value)
    tight = isinstance(value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
    forms = [f"{code}.detach()" if tight else f"({code}).detach()"]
    if isinstance(value, cst.Tuple):
        forms = ["(" + ", ".join(f"{tree.code(e.value)}.detach()" for e in value.elements) + ",)"]
    for form in forms:
        title = f"keep `{form}` at line {frame.line}"
        yield Candidate(title, "boundary", RANK + 1, {frame.file: tree.replace(tree.cut(value, form))}, NOTE)


# -- an in-place write that keeps the history ----------------------------------------------------------
_KEPT = (
    "the write replaced every value, so no gradient went to what was there before: the gradient stays as it was, and the "
    "old graph is let go"
)


def _without_history(project: Project, held: Carrier) -> Iterator[Candidate]:
    frame = held.stored
    tree = project.tree(frame.file) if frame is not None else None
    if frame is None or tree is None:
        return
    name = held.name.partition("[")[0] if held.in_place == "__setitem__" else held.name
    for statement in _at(tree, frame):
        if not tree.own_line(statement):
            continue
        if held.in_place == "zero_":
            end = tree.span(statement)[1]
            title = f"`{name}.zero_().detach_()` at line {frame.line}"
            yield Candidate(
                title, "history", RANK, {frame.file: tree.replace((end, end, ".detach_()"))}, _KEPT
            )
        title = f"detach `{name}` before line {frame.line} writes to it"
        for order, text in enumerate((f"{name}.detach_()", f"{name} = {name}.detach()")):
            new = tree.replace(tree.before(statement, text))
            yield Candidate(title, "history", RANK + 1 + order, {frame.file: new}, _KEPT)


# -- small questions -----------------------------------------------------------------------------------
def _at(tree: Tree, frame: Frame) -> list[cst.CSTNode]:
    return [s for s in tree.statements(frame.line) if tree.lines(s)[0] == frame.line]


def _name(held: Carrier) -> str:
    """`states[i]` of `states[i]`, `self.memory` of `self.memory.append`."""
    if held.how == "collected":
        return held.name.rpartition(".")[0]
    if held.in_place:
        return held.name.partition("[")[0]  # rows of a tensor
    return ast.unparse(ast.parse(held.name, mode="eval")) if '"' not in held.name else held.name


def _value(statement: cst.CSTNode) -> cst.CSTNode:
    value = getattr(statement, "value", None)
    return value if isinstance(value, cst.CSTNode) else statement


def _is_place(node: cst.CSTNode) -> bool:
    return isinstance(node, (cst.Name, cst.Attribute, cst.Subscript)) and syntax.is_place(node)
