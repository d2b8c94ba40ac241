"""The line that stored what a slot holds, and how that line spells the slot: read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gradmend.capture.graph.carriers import Slot, Step
from gradmend.model import Frame
from gradmend.story.source import Source, parse

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FILLS = frozenset(
    {"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "register_buffer"}
)
_CUTS = frozenset(
    {"detach", "item", "zeros", "ones", "zeros_like", "ones_like", "new_zeros", "empty", "randn", "full"}
)


@dataclass(frozen=True)
class Store:
    """A statement that gives a slot its value."""

    frame: Frame
    name: str  # `self.h`, `memory["h"]`, `self.memory`
    node: ast.stmt
    in_place: str = ""  # the method that changes the tensor itself: "zero_"
    cut: bool = False  # it stores a constant, or what no graph leads to


def stores_of(slot: Slot, files: Iterable[str] = ()) -> list[Store]:
    """Every statement that may store there, in the order of the source: in the files that the slot names, and these."""
    item = slot.steps[-1].kind == "item"
    named = (s.file for s in reversed(slot.steps) if s.file)
    return [
        store
        for file in dict.fromkeys((*named, *files))
        if (source := parse(file)) is not None
        for store in _in_file(source, file, slot.last, item)
    ]


def stored_by(slot: Slot, made: Sequence[Frame]) -> Store | None:
    """The statement that stored the value made on this call chain, innermost line first; None if unknown."""
    found = [s for s in stores_of(slot, (f.file for f in made)) if not s.in_place or not s.cut]
    real = [s for s in found if not s.cut] or found
    for frame in made:
        on = [s for s in real if _covers(s, frame)]
        if on:
            return on[-1]
    for frame in made:
        near = [s for s in real if (s.frame.file, s.frame.function) == (frame.file, frame.function)]
        if near:
            return min(near, key=lambda s: (s.frame.line < frame.line, abs(s.frame.line - frame.line)))
    return real[-1] if len({(s.frame.file, s.frame.line) for s in real}) == 1 else None


def first_of_chain(store: Store, slot: Slot, lines: set[tuple[str, int]]) -> Store:
    """Of `adv = returns - net(obs)`, `adv = adv / adv.std()`: the first. `lines` are those that made parts of the graph."""
    where = (store.frame.file, store.frame.function)
    earlier = [
        s
        for s in stores_of(slot)
        if (s.frame.file, s.frame.function) == where
        and s.frame.line < store.frame.line
        and s.name == store.name
    ]
    while earlier and _reads(store.node, store.name) and not store.in_place:
        before = earlier.pop()
        if before.in_place or before.cut or (before.frame.file, before.frame.line) not in lines:
            break
        store = before
    return store


def _reads(node: ast.stmt, name: str) -> bool:
    value = getattr(node, "value", None)
    return value is not None and any(
        ast.unparse(n) == name for n in ast.walk(value) if isinstance(n, ast.expr)
    )


def _covers(store: Store, frame: Frame) -> bool:
    first, last = store.node.lineno, store.node.end_lineno or store.node.lineno
    return store.frame.file == frame.file and first <= frame.line <= last


def _in_file(source: Source, file: str, step: Step, item: bool) -> Iterator[Store]:
    nodes = sorted(
        (n for n in ast.walk(source.tree) if isinstance(n, ast.stmt)), key=lambda n: (n.lineno, n.col_offset)
    )
    for node in nodes:
        if isinstance(node, _FUNCTIONS) and _keeps(node, step):
            yield from _returned(source, file, node, step)
        for name, in_place, cut in _stored(node, step, item):
            if _in_scope(source, node, step, rebinds=name == step.key and not in_place):
                yield Store(_frame(source, file, node), name, node, in_place, cut)


def _frame(source: Source, file: str, node: ast.stmt) -> Frame:
    home = next((u.name for u in source.ancestors(node) if isinstance(u, _FUNCTIONS)), "<module>")
    return Frame(file, node.lineno, home, "user", node.col_offset, node.end_lineno, node.end_col_offset)


def _stored(node: ast.stmt, step: Step, item: bool) -> Iterator[tuple[str, str, bool]]:
    """(name as written, method that writes in place, whether it cuts) of each store to the slot in a statement."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        cut = _cuts(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for one in _targets(target):
                if _is(one, step):
                    yield ast.unparse(one), "", cut
                elif isinstance(one, ast.Subscript) and _is(_base(one), step):
                    yield ast.unparse(one).replace("'", '"'), "" if item else "__setitem__", cut
    elif isinstance(node, ast.AugAssign) and _is(_base(node.target), step):
        yield ast.unparse(node.target), "", False
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _called(node.value, step)


def _called(call: ast.Call, step: Step) -> Iterator[tuple[str, str, bool]]:
    if not isinstance(call.func, ast.Attribute):
        return
    method, on = call.func.attr, _base(call.func.value)
    while isinstance(on, ast.Call) and isinstance(on.func, ast.Attribute):  # `h.zero_().add_(x)`
        method, on = on.func.attr, _base(on.func.value)
    if _is(on, step):
        if method in _FILLS:
            yield ast.unparse(call.func), "", False
        elif method.endswith("_") and not method.startswith("_"):
            yield (
                ast.unparse(call.func.value),
                method,
                method in ("zero_", "fill_", "copy_", "normal_", "uniform_"),
            )
    elif method == "register_buffer" and call.args and getattr(call.args[0], "value", None) == step.key:
        yield f"self.{step.key}", "", True


def _targets(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _targets(one.value if isinstance(one, ast.Starred) else one)
    else:
        yield target


def _base(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _is(node: ast.expr, step: Step) -> bool:
    if step.kind == "attribute":
        # A global of another module is a name there and an attribute here.
        if isinstance(node, ast.Name) and step.file and not step.home:
            return node.id == step.key
        return isinstance(node, ast.Attribute) and node.attr == step.key
    return isinstance(node, ast.Name) and node.id == step.key


def _in_scope(source: Source, node: ast.stmt, step: Step, rebinds: bool) -> bool:
    """Whether a name there is the variable that the step means. What only writes into it needs no `global`."""
    homes = [u for u in source.ancestors(node) if isinstance(u, _FUNCTIONS)]
    home = homes[0] if homes else None
    if step.kind == "global" or (step.kind == "attribute" and not step.home):
        if home is None or step.key in _declared(home, ast.Global):
            return True
        return not rebinds and not any(step.key in _bound(h) for h in homes)
    if step.kind == "local":
        inner = homes[: next((i for i, h in enumerate(homes) if h.name == step.home), 0)]
        if not any(h.name == step.home for h in homes):
            return False
        if not inner or any(step.key in _declared(h, ast.Nonlocal) for h in inner[:1]):
            return True
        return not rebinds and not any(step.key in _bound(h) for h in inner)
    if step.kind == "cell":
        # The cell belongs to a function around the one that was found with it.
        return bool(homes) and any(h.name == step.home or _defines(h, step.home) for h in homes)
    return True


def _bound(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The names that are variables of the function itself."""
    args = function.args
    names = {a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names | (stored - _declared(function, ast.Global) - _declared(function, ast.Nonlocal))


def _declared(function: ast.AST, kind: type[ast.Global] | type[ast.Nonlocal]) -> set[str]:
    return {name for n in ast.walk(function) if isinstance(n, kind) for name in n.names}


def _defines(function: ast.AST, name: str) -> bool:
    return any(isinstance(n, _FUNCTIONS) and n.name == name for n in ast.walk(function))


def _keeps(function: ast.FunctionDef | ast.AsyncFunctionDef, step: Step) -> bool:
    """Whether the function's decorator keeps its result under the slot's name: `cached_property`, `lru_cache`."""
    if function.name != step.key or step.kind not in ("attribute", "cache", "cell"):
        return False
    return any("cache" in ast.unparse(d) for d in function.decorator_list)


def _returned(
    source: Source, file: str, function: ast.FunctionDef | ast.AsyncFunctionDef, step: Step
) -> Iterator[Store]:
    method = any(a.arg == "self" for a in function.args.args[:1])
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield Store(_frame(source, file, node), f"{'self.' * method}{step.key}", node)


def _cuts(value: ast.expr) -> bool:
    """`None`, a number, zeros, a detached tensor: no graph leads there. A branch that does not cut decides."""
    if isinstance(value, ast.IfExp):
        return _cuts(value.body) and _cuts(value.orelse)
    if isinstance(value, ast.Tuple | ast.List):
        return all(map(_cuts, value.elts))
    if isinstance(value, ast.Dict):
        return all(map(_cuts, value.values))
    if isinstance(value, ast.GeneratorExp | ast.ListComp):
        return _cuts(value.elt)
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func).rpartition(".")[2]
        inner = [a for a in value.args if isinstance(a, ast.GeneratorExp | ast.ListComp)]
        return name in _CUTS or (name in ("tuple", "list", "deque") and all(map(_cuts, inner)))
    return isinstance(value, ast.Constant)
