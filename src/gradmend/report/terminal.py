"""A Story for the terminal, in the manner of rustc: the line to look at first, the places, what to do.

error[GM101]: `y` was overwritten after exp kept it
  --> train.py:5:1
   |
 4 | y = x.exp()
   |     ------- exp kept its result here
 5 | y += 1
   | ^^^^^^ overwritten here, by add_
   |
   = help: write `y = y + 1`
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from gradmend.model import Frame, Span, Story
from gradmend.report.excerpt import Marked, crop, expand, harmless, marked, source_line, width_of

_CODES = {"error": "1;31", "warning": "1;33", "note": "1;36", "healed": "1;32", "gutter": "1;34", "bold": "1"}
_NARROWEST = 40


def render(story: Story, *, colour: bool, width: int) -> str:
    """The whole story as text, without a newline at its end."""
    story = _harmless(story)
    spans = [s for s in story.spans if s.frame.line > 0]
    highest = max((max(s.frame.line, s.frame.end_line or 0) for s in spans), default=0)
    page = _Page(story.level, colour, max(width, _NARROWEST), max(2, len(str(highest))))
    return "\n".join(line.rstrip() for line in page.lines(story, spans))


def _harmless(story: Story) -> Story:
    """Names and lines of the program stand in all of its words."""
    return replace(
        story,
        message=harmless(story.message),
        spans=tuple(replace(s, label=harmless(s.label)) for s in story.spans),
        notes=tuple(map(harmless, story.notes)),
        helps=tuple(map(harmless, story.helps)),
    )


@dataclass(frozen=True)
class _Page:
    level: str
    colour: bool
    width: int
    gutter: int  # columns for line numbers

    @property
    def room(self) -> int:
        """Columns right of the gutter's bar."""
        return self.width - self.gutter - 3

    def paint(self, text: str, how: str) -> str:
        return f"\x1b[{_CODES[how]}m{text}\x1b[0m" if self.colour and text else text

    def edge(self, sign: str, number: object = "") -> str:
        return self.paint(f"{number:>{self.gutter}} {sign}", "gutter")

    def lines(self, story: Story, spans: list[Span]) -> Iterator[str]:
        head = f"{story.level}[{story.code}]" if story.code else story.level
        first, *rest = wrap(story.message, self.width - len(head) - 2, self.width - 4)
        yield self.paint(head, self.level) + self.paint(f": {first}", "bold")
        for row in rest:
            yield self.paint(f"    {row}", "bold")
        for i, group in enumerate(_by_file(spans)):
            yield from self.file(group, first=i == 0)
        if spans and (story.notes or story.helps):
            yield self.edge("|")
        for note in story.notes:
            yield from self.footer("note", note)
        for help in story.helps:
            yield from self.footer("help", help)

    def file(self, spans: list[Span], *, first: bool) -> Iterator[str]:
        head = next((s for s in spans if s.primary), spans[0]).frame
        if not first:
            yield self.edge("|")
        arrow = "-->" if first else ":::"
        yield f"{self.paint(' ' * self.gutter + arrow, 'gutter')} {where(head)}"
        shown = [(s, marked(s.frame)) for s in spans]
        for span, rows in shown:
            if not rows:  # no source to show: exec'd code, a deleted file
                at = "" if span.frame == head else f"{where(span.frame)}: "
                for row in wrap(at + span.label, self.room, self.room):
                    yield f"{self.edge('=')} {row}"
        if any(rows for _, rows in shown):
            yield self.edge("|")
            yield from self.excerpt(head.file, [(s, rows) for s, rows in shown if rows])

    def excerpt(self, file: str, spans: list[tuple[Span, list[Marked]]]) -> Iterator[str]:
        """Every line once, in order, each followed by the marks of all the spans on it."""
        flat = [(row, span, row is rows[-1]) for span, rows in spans for row in rows]
        flat.sort(key=lambda item: (item[0].number, not item[1].primary, item[0].start))
        before = 0
        for number, group in groupby(flat, key=lambda item: item[0].number):
            if before and number == before + 2:
                between = Marked(before + 1, expand(source_line(file, before + 1) or ""), 0, 1)
                yield f"{self.edge('|', before + 1)} {crop(between, self.room).text}"
            elif before and number > before + 2:
                yield self.paint("...", "gutter")
            items = list(group)
            shown = crop(items[0][0], self.room)
            yield f"{self.edge('|', number)} {shown.text}"
            for row, span, ends in items:
                view = shown if row is items[0][0] else _onto(shown, crop(row, self.room))
                yield from self.marks(view, span, span.label if ends else "")
            before = number

    def marks(self, view: Marked, span: Span, label: str) -> Iterator[str]:
        """The underline and its label: beside it where there is room, else below."""
        how = self.level if span.primary else "gutter"
        under = ("^" if span.primary else "-") * view.length
        rows = [(view.start, f"{under} {label}".rstrip())]
        if "\n" in label or view.start + width_of(rows[0][1]) > self.room:
            start = min(view.start, self.room // 3)
            rows = [(view.start, under)]
            rows += [(start, row) for row in wrap(label, self.room - start, self.room - start)]
        for start, text in rows:
            yield f"{self.edge('|')} {' ' * start}{self.paint(text, how)}"

    def footer(self, kind: str, text: str) -> Iterator[str]:
        margin = self.gutter + len(f" = {kind}: ")
        first, *rest = text.split("\n")
        rows = wrap(first, self.width - margin, self.width - margin)
        # What follows the first line is laid out already: a diff, a snippet.
        rows += [expand(line) for line in rest]
        yield f"{self.edge('=')} {self.paint(f'{kind}:', 'bold')} {rows[0]}"
        for row in rows[1:]:
            yield " " * margin + row


def _by_file(spans: list[Span]) -> list[list[Span]]:
    """Spans of one file together, the primary one's file first."""
    files = dict.fromkeys(s.frame.file for s in sorted(spans, key=lambda s: not s.primary))
    return [[s for s in spans if s.frame.file == file] for file in files]


def _onto(shown: Marked, other: Marked) -> Marked:
    """Another mark on a line that is shown already; if it was cut differently, as near as can be."""
    if other.text == shown.text:
        return other
    end = width_of(shown.text)
    start = min(other.start, max(0, end - 1))
    return Marked(shown.number, shown.text, start, max(1, min(other.length, end - start)))


def where(frame: Frame) -> str:
    """ "train.py:5:1 in forward": what editors and terminals turn into a link."""
    column = ""
    if frame.col is not None:
        before = (source_line(frame.file, frame.line) or "").encode()[: frame.col]
        column = f":{len(before.decode('utf-8', 'ignore')) + 1}"
    inside = f" in {frame.function}" if frame.function and frame.function != "<module>" else ""
    return harmless(f"{short(frame.file)}:{frame.line}{column}{inside}")


def short(file: str) -> str:
    """Relative to the working directory where the file lies below it."""
    if not os.path.isabs(file):
        return file
    try:
        relative = os.path.relpath(file)
    except (ValueError, OSError):  # another drive; a working directory that is gone
        return file
    return file if relative.startswith("..") else relative


def wrap(text: str, first: int, rest: int) -> list[str]:
    """Lines of at most these widths on a terminal, wide characters counted; long words (paths) stay whole."""
    rows: list[str] = []
    for part in text.split("\n"):
        line = ""
        for word in part.split(" "):
            longer = f"{line} {word}" if line else word
            if line and width_of(longer) > max(20, rest if rows else first):
                rows.append(line)
                line = word
            else:
                line = longer
        rows.append(line)
    return rows
