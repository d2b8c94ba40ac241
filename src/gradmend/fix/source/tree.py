"""Source with its syntax tree: what stands at a line, where a node begins and ends, who its parent is.

Rewrites cut the text at node borders that LibCST gives (parentheses and comments included), so
everything outside a cut stays as the author typed it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gradmend.errors import UsageError
from gradmend.fix.source.text import Cut, Overlap, splice

if TYPE_CHECKING:
    import libcst as cst

    from gradmend.fix.source.facts import Place


class Tree:
    def __init__(self, text: str, file: str = "<source>") -> None:
        import libcst as cst
        from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

        self.text = text
        self.file = file
        try:
            wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        except cst.ParserSyntaxError as why:
            raise UsageError(f"{file}:{why.raw_line}: cannot parse: {why.message.splitlines()[0]}") from None
        self.module = wrapper.module
        self._spots: Any = wrapper.resolve(PositionProvider)
        self._parents: Any = wrapper.resolve(ParentNodeProvider)
        self._starts = [0]
        at = 0
        for line in text.splitlines(keepends=True) if not _odd(text) else _lines(text):
            at += len(line)
            self._starts.append(at)

    # -- positions -------------------------------------------------------------------------------
    def offset(self, line: int, column: int) -> int:
        return self._starts[min(line - 1, len(self._starts) - 1)] + column

    def line_of(self, offset: int) -> int:
        return bisect.bisect_right(self._starts, offset)

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        spot = self._spots[node]
        return spot.start.line, spot.end.line

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Where a node begins and ends, its own parentheses included (LibCST leaves them out)."""
        start, end = self._spots[node].start, self._spots[node].end
        lpar = getattr(node, "lpar", ())
        if lpar and isinstance(lpar, (list, tuple)):
            start = self._spots[lpar[0]].start
            end = self._spots[node.rpar[-1]].end  # type: ignore[attr-defined]
        return self.offset(start.line, start.column), self.offset(end.line, end.column)

    def code(self, node: cst.CSTNode) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def line_text(self, line: int) -> str:
        return self.text[self.offset(line, 0) : self.offset(line + 1, 0)] if line >= 1 else ""

    @property
    def newline(self) -> str:
        return self.module.default_newline

    # -- structure -------------------------------------------------------------------------------
    @cached_property
    def nodes(self) -> list[cst.CSTNode]:
        found: list[cst.CSTNode] = []
        stack: list[cst.CSTNode] = [self.module]
        while stack:
            node = stack.pop()
            found.append(node)
            stack.extend(reversed(node.children))
        return found

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

    def up(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The node's ancestors, nearest first."""
        at = self.parent(node)
        while at is not None:
            yield at
            at = self.parent(at)

    def inside(self, root: cst.CSTNode) -> Iterator[cst.CSTNode]:
        stack = [root]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))

    def statements(self, line: int, place: Place | None = None) -> list[cst.CSTNode]:
        """The small statements that cover a line (the one at the place's column where it has one), or
        else the innermost compound statement whose header is there."""
        import libcst as cst

        small: list[cst.CSTNode] = [
            n
            for n in self.nodes
            if isinstance(n, cst.BaseSmallStatement) and self.lines(n)[0] <= line <= self.lines(n)[1]
        ]
        if place is not None and place.column is not None and len(small) > 1:
            at = self.place_offset(place)
            hit = [n for n in small if self.span(n)[0] <= at < self.span(n)[1]]
            small = hit or small
        small = small or [
            n
            for n in self.nodes
            if isinstance(n, cst.Decorator) and self.lines(n)[0] <= line <= self.lines(n)[1]
        ]
        if small:
            return small
        headed: list[cst.CSTNode] = [
            n
            for n in self.nodes
            if isinstance(n, cst.BaseCompoundStatement) and self.lines(n)[0] <= line <= self.lines(n)[1]
        ]
        return headed[-1:]

    def place_offset(self, place: Place) -> int:
        """Where a frame's column is: Python counts columns in UTF-8 bytes."""
        raw = self.line_text(place.line).encode()
        column = len(raw[: place.column or 0].decode(errors="ignore"))
        return self.offset(place.line, column)

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        import libcst as cst

        for above in self.up(node):
            if isinstance(above, cst.FunctionDef):
                return above
        return None

    def scope(self, node: cst.CSTNode) -> cst.CSTNode:
        """The function (or lambda, or module) whose names a node sees first."""
        return self.function(node) or self.module

    # -- edits -----------------------------------------------------------------------------------
    def replace(self, *cuts: Cut) -> str:
        """The edited text; as it was where two cuts claim the same piece of it, which makes no candidate: one that
        can't be written down must not end the search for the others."""
        try:
            return splice(self.text, cuts)
        except Overlap:
            return self.text

    def cut(self, node: cst.CSTNode, new: str) -> Cut:
        start, end = self.span(node)
        return start, end, new

    def indent(self, node: cst.CSTNode) -> str:
        line = self.line_text(self.lines(node)[0])
        return line[: len(line) - len(line.lstrip(" \t\f"))]

    def own_line(self, statement: cst.CSTNode) -> bool:
        """Does the statement begin its line (and not follow `if x:` or `;`)?"""
        start, _ = self.span(statement)
        head = self.text[self.offset(self.lines(statement)[0], 0) : start]
        return not head.strip()

    def before(self, statement: cst.CSTNode, *new: str) -> Cut:
        """Insert statements in front of a small statement, in its style."""
        start, _ = self.span(statement)
        if self.own_line(statement):
            joint = self.newline + self.indent(statement)
            return start, start, "".join(n + joint for n in new)
        return start, start, "".join(n + "; " for n in new)

    def without(self, statement: cst.CSTNode) -> Cut:
        """Take a small statement out: with its line, or with its `;`; a comment behind it stays."""
        start, end = self.span(statement)
        line_end = self.offset(self.lines(statement)[1] + 1, 0)
        after = self.text[end:line_end]
        if after.lstrip(" \t").startswith(";"):
            return start, end + len(after) - len(after.lstrip(" \t;")), ""
        if not self.own_line(statement):
            return start, end, "pass"
        if after.strip():
            return start, end + len(after) - len(after.lstrip(" \t")), ""
        return self.offset(self.lines(statement)[0], 0), line_end, ""


def _odd(text: str) -> bool:
    """Characters at which str.splitlines breaks and Python does not."""
    return any(c in text for c in "\v\f\x1c\x1d\x1e\x85\u2028\u2029")


def _lines(text: str) -> Iterator[str]:
    start = 0
    at = 0
    while at < len(text):
        if text[at] == "\r" and text[at + 1 : at + 2] == "\n":
            at += 1
        if text[at] in "\r\n":
            yield text[start : at + 1]
            start = at + 1
        at += 1
    if start < len(text):
        yield text[start:]
