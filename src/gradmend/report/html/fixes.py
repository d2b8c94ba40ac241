"""Proposed edits: the diff, its proof and its cost; those that were tried and failed, folded away."""

from __future__ import annotations

from typing import Any

from gradmend.report.html.text import name, plain, prose, words


def fixes(found: list[dict[str, Any]]) -> str:
    failed = [_fix(f) for f in found if f.get("status") == "failed"]
    rest = [_fix(f) for f in found if f.get("status") != "failed"]
    if failed:
        rest.append(
            f"<details><summary>tried and rejected: {len(failed)}</summary>{''.join(failed)}</details>"
        )
    return "\n".join(rest)


def _proof(fix: dict[str, Any]) -> str:
    """Without what the page shows elsewhere: the title, and the rejected ones."""
    lines = str(fix.get("note") or "").splitlines()
    kept = [line for line in lines if not line.startswith(("fix: ", "rejected: "))]
    return prose("\n".join(kept))


def _fix(fix: dict[str, Any]) -> str:
    status = str(fix.get("status", ""))
    rows = []
    for line in str(fix.get("diff") or "").splitlines():
        tag = {"+": "ins", "-": "del"}.get(line[:1], "span")
        if line.startswith(("--- ", "+++ ", "@@")):
            rows.append(f'<span class="head">{plain(line)}</span>')
        else:
            rows.append(f"<{tag}>{plain(line) or ' '}</{tag}>")
    diff = f'<pre class="diff" tabindex="0">{chr(10).join(rows)}</pre>' if rows else ""
    return (
        f'<section class="fix {name(status)}"><h3>{words(fix.get("title", ""))} '
        f"<small>{plain(status)}</small></h3>{diff}{_proof(fix)}</section>"
    )
