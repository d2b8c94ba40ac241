"""A Session as one page that needs nothing else: no scripts, no fonts, no network; light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

from gradmend.report._page import STYLE
from gradmend.report.excerpt import expand, source_line
from gradmend.report.terminal import short

_OUTCOMES = {
    "clean": "No value that backward needed was overwritten. Only code that this run reached was looked at.",
    "conflict": "A value that backward needed was overwritten.",
    "healed": "Overwritten values were put back: the gradients are those of the forward that ran.",
    "failed": "The program ended with an error.",
}
_KINDS = {
    "error": "PyTorch raises",
    "silent": "PyTorch says nothing, and the gradient is wrong",
    "refused-but-right": "PyTorch raises, although no needed byte changed",
}
_CONTEXT = 2  # lines around the one that matters


def render(session_json: dict[str, Any]) -> str:
    """The page for a Session as `Session.as_json()` gives it, or as `--report` wrote it."""
    conflicts: list[dict[str, Any]] = session_json.get("conflicts") or []
    outcome = str(session_json.get("outcome", "clean"))
    body = [
        f'<header><p class="mark">Gradmend</p><h1 class="{_class(outcome)}">{escape(outcome)}</h1>',
        f"<p>{escape(_lead(outcome, conflicts))}</p>{_summary(conflicts)}</header>",
        "<main>",
        *(_conflict(i, c) for i, c in enumerate(conflicts, 1)),
        _error(session_json.get("error")),
        _stats(session_json.get("stats") or {}),
        "</main>",
    ]
    title = f"Gradmend: {outcome}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def _lead(outcome: str, conflicts: list[dict[str, Any]]) -> str:
    if outcome == "conflict" and not any(c.get("writes") or c.get("saved") for c in conflicts):
        return "PyTorch can't compute these gradients as the program stands."  # e.g. a second backward
    return _OUTCOMES.get(outcome, "")


def _class(word: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in word)


def _summary(conflicts: list[dict[str, Any]]) -> str:
    if not conflicts:
        return ""
    rows = "".join(
        f'<li><a href="#c{i}"><code>{escape(str(c.get("rule", "")))}</code> {_words(str(c.get("message", "")))}</a></li>'
        for i, c in enumerate(conflicts, 1)
    )
    return f"<nav><ol>{rows}</ol></nav>"


def _conflict(number: int, conflict: dict[str, Any]) -> str:
    kind = str(conflict.get("kind", ""))
    times = int(conflict.get("times") or 1)
    facts = [_KINDS.get(kind, kind)]
    if times > 1:
        facts.append(f"{times} times")
    if conflict.get("healed_bytes"):
        facts.append(f"{conflict['healed_bytes']} bytes kept to heal it")
    return "\n".join(
        part
        for part in (
            f'<article id="c{number}" class="{_class(kind)}">',
            f"<h2><code>{escape(str(conflict.get('rule', '')))}</code> {_words(str(conflict.get('message', '')))}</h2>",
            f'<p class="facts">{escape(" · ".join(f for f in facts if f))}</p>',
            *(_place(w, _write_words(w), primary=True) for w in conflict.get("writes") or []),
            _place(conflict.get("saved"), _saved_words(conflict.get("saved"))),
            _place(conflict.get("backward"), "needed by this backward"),
            _prose(str(conflict.get("why") or "")),
            _list("note", conflict.get("notes")),
            _list("help", conflict.get("help")),
            _fixes(conflict.get("fixes") or []),
            "</article>",
        )
        if part
    )


def _write_words(write: dict[str, Any]) -> str:
    times = int(write.get("times") or 1)
    return (
        f"overwritten by {write.get('op') or 'something'}"
        + (f", {times} times" if times > 1 else "")
        + (", unseen by PyTorch" if write.get("quiet") else "")
        + _tensor(write.get("tensor"))
    )


def _saved_words(saved: dict[str, Any] | None) -> str:
    if not saved:
        return ""
    slot = saved.get("slot")
    return (
        f"kept by {saved.get('op') or 'an op'}"
        + (f" as {slot}" if slot else "")
        + _tensor(saved.get("tensor"))
    )


def _tensor(tensor: Any) -> str:
    """ ", `y` of float32[3, 4]"; reports made elsewhere may have it as plain text."""
    if not isinstance(tensor, dict):
        return f", {tensor}" if tensor else ""
    shape = f"{tensor.get('dtype') or ''}{list(tensor.get('shape') or [])}"
    return f", {tensor['name']}: {shape}" if tensor.get("name") else f", {shape}"


def _place(at: dict[str, Any] | None, words: str, primary: bool = False) -> str:
    if not at or at.get("file") is None:
        return f'<p class="place">{escape(words)}</p>' if words and at else ""
    file, line = str(at["file"]), int(at.get("line") or 0)
    inside = at.get("function")
    where = f"{short(file)}:{line}" + (f" in {inside}" if inside and inside != "<module>" else "")
    return (
        f'<section class="place{" primary" if primary else ""}">'
        f"<h3>{escape(words)} <small>{escape(where)}</small></h3>{_source(file, line)}{_stack(at.get('stack'))}</section>"
    )


def _source(file: str, line: int) -> str:
    if source_line(file, line) is None:
        return ""
    rows = []
    for number in range(max(1, line - _CONTEXT), line + _CONTEXT + 1):
        text = source_line(file, number)
        if text is None:
            break
        tag = "mark" if number == line else "span"
        rows.append(f"<{tag}><i>{number}</i>{escape(expand(text)) or ' '}</{tag}>")
    return f"<pre>{chr(10).join(rows)}</pre>"


def _stack(stack: Iterable[dict[str, Any]] | None) -> str:
    frames = list(stack or [])
    if len(frames) < 2:
        return ""
    rows = "".join(
        f'<li class="{_class(str(f.get("owner", "user")))}">{escape(short(str(f.get("file"))))}:{f.get("line")} '
        f"{escape(str(f.get('function') or ''))}</li>"
        for f in frames
    )
    return f"<details><summary>call chain, innermost first</summary><ol>{rows}</ol></details>"


def _words(text: str) -> str:
    """Escaped, with `code` between backticks set as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(text))


def _prose(text: str) -> str:
    return f'<p class="told">{_words(text)}</p>' if text else ""


def _list(kind: str, texts: Any) -> str:
    return "".join(f'<div class="{kind}"><b>{kind}</b> {_text(str(t))}</div>' for t in texts or [])


def _text(text: str) -> str:
    first, _, rest = text.partition("\n")
    return _words(first) + (f"<pre>{escape(rest)}</pre>" if rest else "")


def _fixes(fixes: list[dict[str, Any]]) -> str:
    """Those to choose from; those that were tried and failed, folded away."""
    failed = [_fix(f) for f in fixes if f.get("status") == "failed"]
    rest = [_fix(f) for f in fixes if f.get("status") != "failed"]
    if failed:
        rest.append(
            f"<details><summary>tried and rejected: {len(failed)}</summary>{''.join(failed)}</details>"
        )
    return "\n".join(rest)


def _fix(fix: dict[str, Any]) -> str:
    status = str(fix.get("status", ""))
    rows = []
    for line in str(fix.get("diff") or "").splitlines():
        tag = {"+": "ins", "-": "del"}.get(line[:1], "span")
        if line.startswith(("--- ", "+++ ", "@@")):
            rows.append(f'<span class="head">{escape(line)}</span>')
        else:
            rows.append(f"<{tag}>{escape(line) or ' '}</{tag}>")
    note = _prose(str(fix.get("note") or ""))
    diff = f"<pre>{chr(10).join(rows)}</pre>" if rows else ""
    return (
        f'<section class="fix {_class(status)}"><h3>{_words(str(fix.get("title", "")))} '
        f"<small>{escape(status)}</small></h3>{note}{diff}</section>"
    )


def _error(error: Any) -> str:
    if not error:
        return ""
    if not isinstance(error, dict):
        return f'<article class="crash"><h2>The error</h2><pre>{escape(str(error))}</pre></article>'
    head = f"{error.get('type', 'Error')}: {error.get('message', '')}"
    trace = str(error.get("traceback") or "")
    details = f"<details><summary>traceback</summary><pre>{escape(trace)}</pre></details>" if trace else ""
    return f'<article class="crash"><h2>The error</h2><pre>{escape(head)}</pre>{details}</article>'


def _stats(stats: dict[str, Any]) -> str:
    rows = "".join(f"<tr><th>{escape(str(k))}</th><td>{escape(str(v))}</td></tr>" for k, v in stats.items())
    return f"<details><summary>what was watched</summary><table>{rows}</table></details>" if rows else ""
