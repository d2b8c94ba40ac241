"""How findings are shown: one format per file, each `render(findings, ...) -> str`."""

from __future__ import annotations

from collections.abc import Sequence

from gradmend.check.findings import Finding

NAMES = ("full", "concise", "json", "github", "sarif")


def render(name: str, findings: list[Finding], colour: bool = False, stopped: Sequence[str] = ()) -> str:
    """`stopped`: files that were not followed to their end, for formats that have a place for it."""
    if name == "json":
        import json

        return json.dumps([f.as_json() for f in findings], indent=2) + "\n"
    if name == "github":
        from gradmend.check.formats import github

        return github.render(findings)
    if name == "sarif":
        from gradmend.check.formats import sarif

        return sarif.render(findings, stopped)
    from gradmend.check.formats import text

    return text.concise(findings) if name == "concise" else text.full(findings, colour)
