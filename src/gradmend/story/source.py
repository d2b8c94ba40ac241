"""The source a frame points into, as a tree: which expression ran, which statement and loop hold it."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass

from gradmend.model import Frame

_KEPT = 64
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
# What an instruction's columns can span: an expression, a slot that is stored to, or an augmented assignment.
_RUNNING = (ast.expr, ast.AugAssign)

Position = tuple[int, int]  # line and column


@dataclass(frozen=True, eq=False)
class Source:
    """One parsed file, as it was at one time."""

    lines: list[str]
    tree: ast.Module
    parents: dict[ast.AST, ast.AST]
    imported: frozenset[str]  # names bound by an import: `torch`, `F`, ...
    ending: dict[
        Position, list[ast.expr | ast.AugAssign]
    ]  # what can have run, by where it ends, outermost first

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        up = self.parents.get(node)
        while up is not None:
            yield up
            up = self.parents.get(up)

    def statement(self, node: ast.AST) -> ast.stmt | None:
        if isinstance(node, ast.stmt):
            return node
        return next((up for up in self.ancestors(node) if isinstance(up, ast.stmt)), None)


_cache: dict[str, Source] = {}


def parse(file: str) -> Source | None:
    """The tree of a file, or None where there is no source or it is not Python (a cell with magics, say)."""
    lines = linecache.getlines(file)
    known = _cache.get(file)
    if known is not None and known.lines == lines:
        return known
    text = "".join(lines)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not tree.body:
        return None
    source = _walked(lines, tree)
    if len(_cache) >= _KEPT:
        _cache.pop(next(iter(_cache)))
    _cache[file] = source
    return source


def _walked(lines: list[str], tree: ast.Module) -> Source:
    parents: dict[ast.AST, ast.AST] = {}
    imported: set[str] = set()
    ending: dict[Position, list[ast.expr | ast.AugAssign]] = {}
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            parents[child] = node
        if isinstance(node, _RUNNING):
            ending.setdefault(_end(node), []).append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imported.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
    return Source(lines, tree, parents, frozenset(imported), ending)


def running(source: Source, frame: Frame) -> ast.AST | None:
    """The node whose instruction was running: an exact match of positions, or the only one that can be meant."""
    if frame.col is None or frame.end_col is None:
        return None
    start, end = (frame.line, frame.col), (frame.end_line or frame.line, frame.end_col)
    ends_here = source.ending.get(end, ())
    exact = [n for n in ends_here if _start(n) == start]
    if exact:
        # `(x)` nested in itself does not occur, but a Starred or a lone expression can share its span: innermost.
        return exact[-1]
    # Python moves the start of a method call that spans lines to the line of the method's name.
    calls = [n for n in ends_here if isinstance(n, ast.Call) and _start(n) <= start]
    return calls[0] if calls else None


def statements_at(source: Source, line: int) -> list[ast.stmt]:
    """The innermost statements that cover this line: more than one where `;` parts them."""
    covering = [
        n
        for n in ast.walk(source.tree)
        if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or n.lineno)
    ]
    holders = {up for n in covering for up in source.ancestors(n)}
    return [n for n in covering if n not in holders]


def statement_of(frame: Frame) -> tuple[Source, ast.stmt] | None:
    source = parse(frame.file)
    if source is None:
        return None
    node = running(source, frame)
    found = source.statement(node) if node is not None else None
    if found is None:
        found = next(iter(statements_at(source, frame.line)), None)
    return None if found is None else (source, found)


def statement_lines(frame: Frame) -> tuple[int, int] | None:
    """First and last line of the statement; of a compound one (`for`, `with`, `if`) only its header."""
    found = statement_of(frame)
    if found is None:
        return None
    statement = found[1]
    body = getattr(statement, "body", None)
    if isinstance(body, list) and body:
        return statement.lineno, max(statement.lineno, min(b.lineno for b in body) - 1)
    return statement.lineno, statement.end_lineno or statement.lineno


def enclosing_loop(frame: Frame) -> int | None:
    """The line of the innermost `for` or `while` whose body holds this frame's line, in the same function."""
    found = statement_of(frame)
    if found is None:
        return None
    source, statement = found
    child: ast.AST = statement
    for up in source.ancestors(statement):
        if isinstance(up, _FUNCTIONS):
            return None
        if isinstance(up, _LOOPS) and child in up.body:
            return up.lineno
        child = up
    return None


def _start(node: ast.expr | ast.stmt) -> Position:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> Position:
    return node.end_lineno or node.lineno, node.end_col_offset or 0
