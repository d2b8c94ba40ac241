"""Words of a report as HTML. Everything that came from the user's program is escaped here, and nowhere else made markup."""

from __future__ import annotations

import re
from html import escape
from typing import Any

from gradmend.report.terminal import short
from gradmend.story.telling import _SPOKEN

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]"
)  # these could hide or reorder words

_PACKAGES = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")  # torch/nn/functional.py says it all


def plain(text: object) -> str:
    """Escaped."""
    return escape(_CONTROL.sub("", str(text)))


def words(text: object) -> str:
    """Escaped, with `code` between backticks set as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", plain(text))


def name(word: object) -> str:
    """A class name, whatever the word."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in str(word))


def prose(text: object) -> str:
    return f'<p class="told">{words(text)}</p>' if text else ""


def listed(kind: str, texts: Any) -> str:
    return "".join(f'<div class="{kind}"><b>{kind}</b> {_folded(str(t))}</div>' for t in texts or [])


def _folded(text: str) -> str:
    first, _, rest = text.partition("\n")
    return words(first) + (f'<pre tabindex="0">{plain(rest)}</pre>' if rest else "")


def where(file: object, line: object, function: object = None) -> str:
    """ "train.py:5 in forward", as plain text."""
    inside = f" in {function}" if function and function != "<module>" else ""
    return f"{_PACKAGES.sub('', short(str(file)))}:{line}{inside}"


def tensor(info: Any) -> str:
    """ "`y`: float32[3, 4]"; reports made elsewhere may have it as plain text."""
    if not isinstance(info, dict):
        return str(info) if info else ""
    shape = f"{info.get('dtype') or ''}{list(info.get('shape') or [])}"
    return f"{info['name']}: {shape}" if info.get("name") else shape


def spoken(op: object) -> str:
    """An operator as it stands in the source: `+=` rather than `__iadd__`."""
    return _SPOKEN.get(str(op), str(op)).strip("`") if op else "something"
