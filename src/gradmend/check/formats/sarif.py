"""SARIF 2.1.0, for code-scanning services; the save and the use are related locations."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gradmend import __version__
from gradmend.check.findings import Finding, Place


def render(findings: list[Finding], stopped: Sequence[str] = ()) -> str:
    codes = sorted({f.rule for f in findings})
    index = {code: i for i, code in enumerate(codes)}
    log: dict[str, Any] = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gradmend",
                        "version": __version__,
                        "rules": [_rule(code) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(f, index[f.rule]) for f in findings],
            }
        ],
    }
    if stopped:
        log["runs"][0]["invocations"] = [
            {"executionSuccessful": True, "toolExecutionNotifications": [_stopped(file) for file in stopped]}
        ]
    return json.dumps(log, indent=2) + "\n"


def _stopped(file: str) -> dict[str, Any]:
    return {
        "level": "warning",
        "message": {"text": "not followed to the end: too many calls and branches"},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(file)}}}],
    }


def _rule(code: str) -> dict[str, Any]:
    from gradmend import rules

    try:
        rule = rules.get(code)
    except KeyError:
        return {"id": code, "name": "syntax-error", "shortDescription": {"text": "The file can't be parsed."}}
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": " ".join(rule.why.split())},
        "help": {"text": rule.as_text(), "markdown": rule.as_markdown()},
    }


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    said: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": finding.severity,
        "message": {"text": _cell(finding.place) + finding.message},
        "locations": [{"physicalLocation": _location(finding.place)}],
    }
    if finding.related:
        said["relatedLocations"] = [
            {"id": i, "physicalLocation": _location(p), "message": {"text": _cell(p) + m}}
            for i, (m, p) in enumerate(finding.related, start=1)
        ]
    if finding.fix is not None and finding.place.cell is None:
        said["fixes"] = [
            {
                "description": {"text": finding.fix.message},
                "artifactChanges": [
                    {
                        "artifactLocation": {"uri": _uri(finding.place.file)},
                        "replacements": [
                            {
                                "deletedRegion": {
                                    "startLine": e.line,
                                    "startColumn": e.column,
                                    "endLine": e.end_line,
                                    "endColumn": e.end_column,
                                },
                                "insertedContent": {"text": e.text},
                            }
                            for e in finding.fix.edits
                        ],
                    }
                ],
            }
        ]
    return said


def _cell(place: Place) -> str:
    return f"cell {place.cell}, line {place.line}: " if place.cell is not None else ""


def _location(place: Place) -> dict[str, Any]:
    if place.cell is not None:  # lines of a cell are none of the file's
        return {"artifactLocation": {"uri": _uri(place.file)}}
    return {
        "artifactLocation": {"uri": _uri(place.file)},
        "region": {
            "startLine": place.line,
            "startColumn": place.column,
            "endLine": place.end_line,
            "endColumn": place.end_column,
        },
    }


def _uri(file: str) -> str:
    try:
        relative = os.path.relpath(file)
    except ValueError:
        return Path(file).absolute().as_uri()
    return (
        Path(file).absolute().as_uri()
        if relative.startswith("..")
        else quote(os.fsencode(relative.replace(os.sep, "/")))
    )
