"""A file of the user's, byte for byte: its encoding, its line endings, and cuts into its text."""

from __future__ import annotations

import codecs
import io
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from gradmend.errors import UsageError

Cut = tuple[int, int, str]  # start, end, replacement; offsets into the text


class Overlap(ValueError):
    """Two cuts claim the same piece of text."""


@dataclass(frozen=True, slots=True)
class Text:
    """Decoded source that can be written back as it was."""

    text: str
    encoding: str = "utf-8"
    bom: bool = False
    typed: str = ""  # as the author typed it, where tabs and spaces are mixed: `text` has spaces alone

    def encode(self, text: str) -> bytes:
        body = self.as_typed(text).encode(self.encoding)
        return codecs.BOM_UTF8 + body if self.bom else body

    def as_typed(self, text: str) -> str:
        """An edited text with the author's own indentation, line by line."""
        if not self.typed:
            return text
        old, new, typed = (t.splitlines(keepends=True) for t in (self.text, text, self.typed))
        leads = {len(_lead(a)): _lead(b) for a, b in zip(old, typed, strict=True)}
        out: list[str] = []
        for kind, i, j, a, b in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if kind == "equal":
                out += typed[i:j]
                continue
            near = {len(_lead(n)): _lead(t) for n, t in zip(old[i:j], typed[i:j], strict=True)}
            for line in new[a:b]:
                width = len(_lead(line))
                out.append(near.get(width, leads.get(width, _lead(line))) + line[width:])
        return "".join(out)


def _lead(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def without_tabs(text: str) -> str:
    """Indented by spaces alone, as Python counts tabs: LibCST takes no mixture."""
    lines = text.splitlines(keepends=True)
    return "".join(_lead(line).expandtabs(8) + line[len(_lead(line)) :] for line in lines)


def read(path: str | Path) -> Text:
    """Read as Python would: BOM, coding line; newlines are kept as they are."""
    try:
        raw = Path(path).read_bytes()
    except OSError as why:
        raise UsageError(f"cannot read {path}: {why.strerror or why}") from None
    return decode(raw, str(path))


def decode(raw: bytes, name: str = "<source>") -> Text:
    bom = raw.startswith(codecs.BOM_UTF8)
    if bom:
        raw = raw[len(codecs.BOM_UTF8) :]
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as why:
        raise UsageError(f"cannot read {name}: {why}") from None
    if _is_mixed(text):
        return Text(without_tabs(text), encoding, bom, text)
    return Text(text, encoding, bom)


def _is_mixed(text: str) -> bool:
    leads = {_lead(line) for line in text.splitlines() if line.strip()}
    tabbed = [lead for lead in leads if "\t" in lead]
    return bool(tabbed) and any(" " in lead for lead in leads)


def splice(text: str, cuts: Iterable[Cut]) -> str:
    """Apply cuts that do not overlap."""
    done = text
    last = len(text) + 1
    for start, end, new in sorted(cuts, reverse=True):
        if end > last:
            raise Overlap("cuts overlap")
        done = done[:start] + new + done[end:]
        last = start
    return done
