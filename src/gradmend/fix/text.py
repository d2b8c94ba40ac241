"""A file of the user's, byte for byte: its encoding, its line endings, and cuts into its text."""

from __future__ import annotations

import codecs
import io
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gradmend.errors import UsageError

Cut = tuple[int, int, str]  # start, end, replacement; offsets into the text


@dataclass(frozen=True, slots=True)
class Text:
    """Decoded source that can be written back as it was."""

    text: str
    encoding: str = "utf-8"
    bom: bool = False

    def encode(self, text: str) -> bytes:
        body = text.encode(self.encoding)
        return codecs.BOM_UTF8 + body if self.bom else body


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
        return Text(raw.decode(encoding), encoding, bom)
    except (SyntaxError, UnicodeDecodeError, LookupError) as why:
        raise UsageError(f"cannot read {name}: {why}") from None


def splice(text: str, cuts: Iterable[Cut]) -> str:
    """Apply cuts that do not overlap."""
    done = text
    last = len(text) + 1
    for start, end, new in sorted(cuts, reverse=True):
        if end > last:
            raise ValueError("cuts overlap")
        done = done[:start] + new + done[end:]
        last = start
    return done
