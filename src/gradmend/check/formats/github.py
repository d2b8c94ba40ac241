"""Workflow commands that GitHub shows beside the lines."""

from __future__ import annotations

from gradmend.check.findings import Finding, Place
from gradmend.check.formats.text import shown


def render(findings: list[Finding]) -> str:
    return "".join(_one(f) for f in findings)


def _one(finding: Finding) -> str:
    place = finding.place
    text = finding.message + (f". Help: {finding.help}" if finding.help else "")
    if place.cell is not None:  # lines of a cell are none of the file's
        text = f"cell {place.cell}, line {place.line}: {text}"
        place = Place(place.file, 1, 1, 1, 1)
    parts = (
        f"file={_property(shown(place.file))},line={place.line},col={place.column},endLine={place.end_line},"
        f"endColumn={place.end_column},title=gradmend {finding.rule}"
    )
    return f"::{finding.severity} {parts}::{_data(f'{finding.rule} {text}')}\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
