"""Who may have written memory that was handed out beyond torch: numpy writes leave no trace, but source does.

From the line where an array met a tensor (`torch.from_numpy(self.ids)`, `a = t.numpy()`) the array's name is
known. It is followed through other names, into the functions it is passed to and back to the callers of a function
that returns it; the lines which write to it in place are the suspects, nearest first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from gradmend.model import Frame, Site
from gradmend.story.callees import Function, functions_called, parameter
from gradmend.story.source import Source, parse, running

_WRITERS = frozenset("fill sort partition put itemset setfield resize setflags byteswap shuffle".split())
_FIRST_ARGUMENT = frozenset(
    "copyto put place putmask shuffle fill_diagonal put_along_axis readinto readinto1 recv_into".split()
)
_VIEWS = frozenset(
    "numpy cpu detach reshape view ravel squeeze swapaxes transpose asarray ascontiguousarray pop popleft".split()
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEEPEST = 3


class Suspect(NamedTuple):
    """A line that writes to the array, and where in the function that holds the array it is reached."""

    frame: Frame
    level: int  # which of the escape's user frames holds the array
    line: int  # the line of that frame's function which writes, or calls what does


def foreign_writes(escape: Site) -> list[Frame]:
    """Lines that write in place to the array of the escape, nearest to it first."""
    return [s.frame for s in suspects(escape)]


def suspects(escape: Site) -> list[Suspect]:
    inner: set[int | str] = set()  # by which arguments the function below was given the array
    for level, frame in enumerate(escape.users):
        source = parse(frame.file)
        if source is None:
            return []
        found: dict[tuple[str, int], Suspect] = {}
        returned, given = False, set[int | str]()
        for call in _calls(source, frame):
            names = _names_at(source, call, {0} if level == 0 else inner)
            for file, line, at in _writes(frame.file, source, call, names):
                function = _function_at(source.tree if file == frame.file else _tree(file), line)
                found.setdefault((file, line), Suspect(Frame(file, line, function, "user"), level, at))
            returned |= isinstance(source.statement(call), ast.Return)
            given |= _parameters(source, call, names)
        if found:
            return sorted(found.values(), key=lambda s: (s.frame.line != s.line, abs(s.line - frame.line)))
        if not (returned or given):
            return []  # it stays in this function: nobody else has it
        inner = given
    return []


def _calls(source: Source, frame: Frame) -> list[ast.Call]:
    node = running(source, frame)
    if isinstance(node, ast.Call):
        return [node]
    return [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and n.lineno == frame.line]


def _names_at(source: Source, call: ast.Call, arguments: set[int | str]) -> set[str]:
    """What the array is called where this call met it: an argument, or the name its result is given."""
    passed = [arg for i, arg in enumerate(call.args) if i in arguments]
    passed += [k.value for k in call.keywords if k.arg in arguments]
    names = {ast.unparse(a) for a in passed if isinstance(a, ast.Name | ast.Attribute | ast.Subscript)}
    for statement in ast.walk(source.tree):
        if isinstance(statement, ast.Assign) and any(n is call for n in ast.walk(statement.value)):
            names |= _given(statement.targets)
    return names


def _parameters(source: Source, call: ast.Call, names: set[str]) -> set[int | str]:
    """Which arguments of the function around the call go by these names."""
    function = next((up for up in source.ancestors(call) if isinstance(up, _FUNCTIONS)), None)
    if function is None:
        return set()
    listed = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if isinstance(source.parents.get(function), ast.ClassDef):
        listed = listed[1:]
    return {key for i, name in enumerate(listed) if name in names for key in (i, name)}


def _writes(file: str, source: Source, call: ast.Call, names: set[str]) -> Iterator[tuple[str, int, int]]:
    """File and line of each write, and the line of this function that leads to it."""
    inside = _scope(source, call)
    yield from _of_names(file, source, inside, names, _DEEPEST)
    for into, name in _passed(file, source, _same_memory(source, call)):
        for where, line, _ in _of_names(into.file, into.source, into.node, {name}, _DEEPEST - 1):
            yield where, line, call.lineno
    for maker, at in _makers(file, source, inside, names):
        made = _returned(maker.node)
        for where, line, _ in _of_names(maker.file, maker.source, maker.node, made, _DEEPEST - 1):
            yield where, line, at


def _makers(file: str, source: Source, inside: ast.AST, names: set[str]) -> Iterator[tuple[Function, int]]:
    """The functions whose results these names are given, and the lines of the calls."""
    for node in ast.walk(inside):
        match node:
            case ast.Assign(targets=targets, value=ast.Call() as call):
                bound = {ast.unparse(n) for t in targets for n in _flat(t)}
            case (
                ast.For(target=target, iter=ast.Call() as call)
                | ast.comprehension(target=target, iter=ast.Call() as call)
            ):
                bound = {ast.unparse(n) for n in _flat(target)}
            case _:
                continue
        if bound & names:
            for function in functions_called(file, source, call):
                yield function, call.lineno


def _flat(target: ast.expr) -> list[ast.expr]:
    return (
        [n for e in target.elts for n in _flat(e)] if isinstance(target, ast.Tuple | ast.List) else [target]
    )


def _returned(function: ast.AST) -> set[str]:
    """The names that a function returns or yields."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Return | ast.Yield) and node.value is not None:
            names |= {name for n in _flat(node.value) if (name := _root(n)) is not None}
    return names


def _of_names(
    file: str, source: Source, inside: ast.AST, names: set[str], depth: int
) -> Iterator[tuple[str, int, int]]:
    names = _aliases(inside, names)
    # `self.ids` of one method may be `sampler.ids` elsewhere: the attribute is what stays.
    attributes = {f".{n.rpartition('.')[2]}" for n in names if "." in n}
    for node in ast.walk(source.tree if attributes else inside):
        if _written(node) & attributes:
            yield file, node.lineno, node.lineno  # type: ignore[attr-defined]
    for node in ast.walk(inside):
        if _written(node) & names:
            yield file, node.lineno, node.lineno  # type: ignore[attr-defined]
        if depth and isinstance(node, ast.expr) and _root(node) in names:
            for into, name in _passed(file, source, node):
                for where, line, _ in _of_names(into.file, into.source, into.node, {name}, depth - 1):
                    yield where, line, node.lineno


def _aliases(inside: ast.AST, names: set[str]) -> set[str]:
    """With the names that views of the array, and the rows of it in a loop, go by."""
    names = set(names)
    for _ in range(_DEEPEST):
        before = len(names)
        for node in ast.walk(inside):
            match node:
                case ast.Assign(targets=targets, value=value) if _root(value) in names:
                    names |= _given(targets)
                case ast.For(target=target, iter=over) | ast.comprehension(target=target, iter=over):
                    listed = over.args if isinstance(over, ast.Call) else [over]
                    if any(_root(one) in names for one in listed):
                        names |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        if len(names) == before:
            break
    return names


def _root(node: ast.expr) -> str | None:
    """The name whose memory this expression shows, seen through indices and calls that make views."""
    while True:
        match node:
            case ast.Subscript(value=inner):
                node = inner
            case ast.Call(func=ast.Attribute(value=inner, attr=attr), args=args) if attr in _VIEWS:
                module = isinstance(inner, ast.Name) and inner.id in ("np", "numpy", "torch")
                if module and not args:
                    return None
                node = args[0] if module else inner
            case ast.Name() | ast.Attribute():
                return ast.unparse(node)
            case _:
                return None


def _same_memory(source: Source, node: ast.expr) -> ast.expr:
    """The widest expression around `node` that still shows the same memory."""
    while True:
        up = source.parents.get(node)
        match up:
            case ast.Subscript(value=inner) if inner is node:
                node = up
            case ast.Attribute(attr=attr) if attr in _VIEWS and isinstance(source.parents.get(up), ast.Call):
                node = source.parents[up]  # type: ignore[assignment]
            case _:
                return node


def _passed(file: str, source: Source, node: ast.expr) -> Iterator[tuple[Function, str]]:
    """The functions that are given this expression, and by which name they know it."""
    up = source.parents.get(node)
    key: int | str | None = None
    if isinstance(up, ast.keyword):
        key, up = up.arg, source.parents.get(up)
    if not isinstance(up, ast.Call):
        return
    if key is None:
        key = next((i for i, arg in enumerate(up.args) if arg is node), None)
    if key is None:
        return
    for function in functions_called(file, source, up):
        name = parameter(function, key)
        if name is not None:
            yield function, name


def _scope(source: Source, node: ast.AST) -> ast.AST:
    """The outermost function around a node: its names mean the same in all functions inside it."""
    around = [up for up in source.ancestors(node) if isinstance(up, _FUNCTIONS)]
    return around[-1] if around else source.tree


def _given(targets: list[ast.expr]) -> set[str]:
    return {ast.unparse(t) for t in targets if isinstance(t, ast.Name | ast.Attribute)}


def _spelled(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return {ast.unparse(node), f".{node.attr}"}
    return {node.id} if isinstance(node, ast.Name) else set()


def _written(node: ast.AST) -> set[str]:
    """The names that this node writes to in place."""
    match node:
        case ast.Assign(targets=targets):
            return set().union(*(_spelled(t) for t in targets if isinstance(t, ast.Subscript)))
        case ast.AugAssign(target=target):
            return _spelled(target)
        case ast.Call(func=ast.Attribute(value=value, attr=attr), args=args, keywords=keywords):
            found = set()
            if attr in _WRITERS:
                found |= _spelled(value)
            if attr in _FIRST_ARGUMENT and args:
                found |= _spelled(args[0])
            # struct.pack_into(format, buffer, ...), Struct(format).pack_into(buffer, ...)
            if attr == "pack_into":
                found.update(*map(_spelled, args[:2]))
            for keyword in keywords:
                if keyword.arg == "out":
                    found |= _spelled(keyword.value)
            return found
    return set()


def _tree(file: str) -> ast.Module:
    source = parse(file)
    return source.tree if source is not None else ast.Module([], [])


def _function_at(tree: ast.Module, line: int) -> str:
    inner = "<module>"
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS) and node.lineno <= line <= (node.end_lineno or 0):
            inner = node.name
    return inner
