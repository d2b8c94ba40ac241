"""A Session as one page that needs nothing else: no scripts, no fonts, no network; light and dark, screen and paper."""

from __future__ import annotations

import os
from typing import Any

from gradmend.report.html.fixes import fixes
from gradmend.report.html.graph import graph
from gradmend.report.html.source import excerpt, steps_of
from gradmend.report.html.style import STYLE
from gradmend.report.html.text import listed, name, plain, prose, words
from gradmend.report.html.timeline import timeline
from gradmend.story.words import counted

_OUTCOMES = {
    "clean": "No value that backward needed was overwritten. Only code that this run reached was looked at.",
    "conflict": "A value that backward needed was overwritten.",
    "healed": "Overwritten values were put back: the gradients are those of the forward that ran.",
    "failed": "The program ended with an error.",
}
_HEADS = {"clean": "Clean", "conflict": "Conflict", "healed": "Healed", "failed": "Failed"}
_KINDS = {
    "error": "PyTorch raises",
    "silent": "PyTorch says nothing, and computes with the changed value",
    "refused-but-right": "PyTorch raises, although no needed byte changed",
}


def render(session_json: dict[str, Any]) -> str:
    """The page for a Session as `Session.as_json()` gives it, or as `--report` wrote it."""
    conflicts: list[dict[str, Any]] = session_json.get("conflicts") or []
    outcome = str(session_json.get("outcome", "clean"))
    fixed = _proven(conflicts)
    head = "Fix proven" if fixed else _HEADS.get(outcome, outcome)
    run: dict[str, Any] = session_json.get("run") or {}
    body = [
        f'<header><p class="brand">Gradmend · <b class="{"proven" if fixed else name(outcome)}">{plain(head)}</b></p>',
        f"<h1>{_sentence(outcome, conflicts)}</h1>",
        f"<p>{plain(_lead(outcome, conflicts, fixed))}</p>{_summary(conflicts)}</header>",
        "<main>",
        *(_conflict(i, c, outcome, alone=len(conflicts) == 1) for i, c in enumerate(conflicts, 1)),
        _error(session_json.get("error"), told=bool(conflicts)),
        "</main>",
        _footer(run, session_json.get("stats") or {}),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing in here may run or load anything, whatever got into it.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{plain(_title(head, run))}</title>\n<style>{STYLE}</style>\n</head>\n"
        '<body class="gradmend">\n' + "\n".join(part for part in body if part) + "\n</body>\n</html>\n"
    )


def fragment(conflicts: list[dict[str, Any]], outcome: str = "conflict") -> str:
    """The same stories as a piece of another page: a notebook's output."""
    articles = "\n".join(_conflict(i, c, outcome) for i, c in enumerate(conflicts, 1))
    return f'<div class="gradmend part"><style>{STYLE}</style>\n{articles}\n</div>'


def _proven(conflicts: list[dict[str, Any]]) -> bool:
    return any(f.get("status") == "proven" for c in conflicts for f in c.get("fixes") or [])


def _title(head: str, run: dict[str, Any]) -> str:
    program = run.get("program")
    return f"Gradmend: {head.lower()}" + (f", {os.path.basename(str(program))}" if program else "")


def _sentence(outcome: str, conflicts: list[dict[str, Any]]) -> str:
    """The one thing to know, first."""
    if len(conflicts) == 1:
        return words(conflicts[0].get("message", ""))
    if conflicts:
        silent = sum(c.get("kind") == "silent" for c in conflicts)
        return plain(counted(len(conflicts), "conflict") + (f", {silent} of them silent" if silent else ""))
    return "The gradients are right" if outcome == "clean" else plain(_HEADS.get(outcome, outcome))


def _lead(outcome: str, conflicts: list[dict[str, Any]], fixed: bool) -> str:
    if fixed:
        return "An edit of the source makes plain PyTorch compute the right gradient. The proof is below the diff."
    if outcome == "conflict" and not any(c.get("writes") or c.get("saved") for c in conflicts):
        return "PyTorch can't compute these gradients as the program stands."  # e.g. a second backward
    return _OUTCOMES.get(outcome, "")


def _summary(conflicts: list[dict[str, Any]]) -> str:
    """A list to jump from, where there are several; the silent ones are marked, since nothing else will tell of them."""
    if len(conflicts) < 2:
        return ""
    rows = "".join(
        f'<li><a href="#c{i}"><code>{plain(c.get("rule", ""))}</code> {words(c.get("message", ""))}'
        f"{' <em>silent</em>' if c.get('kind') == 'silent' else ''}</a></li>"
        for i, c in enumerate(conflicts, 1)
    )
    return f'<nav aria-label="conflicts"><ol>{rows}</ol></nav>'


def _conflict(number: int, conflict: dict[str, Any], outcome: str, alone: bool = False) -> str:
    kind = str(conflict.get("kind", ""))
    times = int(conflict.get("times") or 1)
    healed = outcome == "healed" and kind != "refused-but-right"
    facts = ["healed: " * healed + _KINDS.get(kind, kind)]
    if times > 1:
        facts.append(counted(times, "time"))
    if conflict.get("healed_bytes") and healed:
        facts.append(f"{counted(int(conflict['healed_bytes']), 'byte')} kept to heal it")
    history = conflict.get("history")
    return "\n".join(
        part
        for part in (
            f'<article id="c{number}" class="{name(kind)}">',
            f"<h2><code>{plain(conflict.get('rule', ''))}</code> {words('' if alone else conflict.get('message', ''))}</h2>",
            f'<p class="facts">{plain(" · ".join(f for f in facts if f))}</p>',
            excerpt(steps_of(conflict)),
            fixes(conflict.get("fixes") or []),
            timeline(history),
            prose(conflict.get("why") or ""),
            listed("note", conflict.get("notes")),
            listed(
                "help",
                [h for h in conflict.get("help") or () if not (healed and "gradmend.heal()" in str(h))],
            ),
            graph(history),
            "</article>",
        )
        if part
    )


def _error(error: Any, told: bool = False) -> str:
    if not error or (told and isinstance(error, dict) and error.get("type") == "ConflictError"):
        return ""  # it says what is on the page already
    if not isinstance(error, dict):
        return f'<article class="crash"><h2>The error</h2><pre tabindex="0">{plain(error)}</pre></article>'
    head = f"{error.get('type', 'Error')}: {error.get('message', '')}"
    trace = str(error.get("traceback") or "")
    details = (
        f'<details><summary>traceback</summary><pre tabindex="0">{plain(trace)}</pre></details>'
        if trace
        else ""
    )
    return (
        f'<article class="crash"><h2>The error</h2><pre tabindex="0">{plain(head)}</pre>{details}</article>'
    )


def _footer(run: dict[str, Any], stats: dict[str, Any]) -> str:
    facts = _rows(run)
    watched = _rows(stats)
    more = (
        f"<details><summary>what was watched</summary><table>{watched}</table></details>" if watched else ""
    )
    return f"<footer>{f'<table>{facts}</table>' if facts else ''}{more}</footer>" if facts or more else ""


def _rows(facts: dict[str, Any]) -> str:
    return "".join(f'<tr><th scope="row">{plain(k)}</th><td>{plain(v)}</td></tr>' for k, v in facts.items())
