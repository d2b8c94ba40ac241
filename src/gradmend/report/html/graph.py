"""The backward graph around the node that met a changed value."""

from __future__ import annotations

import os
from typing import Any

from gradmend.report.html.text import plain, where

_LEVELS = {-1: "gives it the gradient", 0: "needs the saved value", 1: "gets its result", 2: "and then"}


def graph(history: Any) -> str:
    try:
        return _figure(history) if history and history.get("graph") else ""
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return ""


def _figure(history: dict[str, Any]) -> str:
    places = history["places"]
    columns = []
    for level, words in _LEVELS.items():
        nodes = [(n, p) for n, at, p in history["graph"] if at == level]
        if not nodes:
            continue
        rows = "".join(
            f"<li><code>{plain(str(n).rpartition('::')[2])}</code>{_place(places[p]) if p is not None else ''}</li>"
            for n, p in nodes
        )
        columns.append(
            f'<div class="level{" here" if level == 0 else ""}"><p class="sub">{words}</p><ul>{rows}</ul></div>'
        )
    return f'<figure class="graph"><figcaption>The backward graph around it</figcaption>{"".join(columns)}</figure>'


def _place(place: Any) -> str:
    file, line, *_ = place
    return f" <small>{plain(where(os.path.basename(file), line))}</small>" if file else ""
