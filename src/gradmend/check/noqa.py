"""`# noqa`, `# noqa: GM101, GM2` (codes or their beginnings), and `# gradmend: skip-file`."""

from __future__ import annotations

import io
import re
import tokenize
from functools import lru_cache

_NOQA = re.compile(r"#\s*noqa(?::\s*(?P<codes>[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*))?", re.IGNORECASE)
_SKIP = re.compile(r"^[ \t]*#[ \t]*gradmend:[ \t]*skip-file[ \t]*\r?$", re.MULTILINE)


def skips_file(source: str) -> bool:
    def alone(token: tokenize.TokenInfo) -> bool:
        return not token.line[: token.start[1]].strip()

    if "skip-file" not in source or not _SKIP.search(source):
        return False
    try:  # a string may say it too
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        return any(t.type == tokenize.COMMENT and _SKIP.match(t.string) and alone(t) for t in tokens)
    except (tokenize.TokenError, SyntaxError):
        return True


@lru_cache(maxsize=4)
def _comments(text: str) -> dict[int, str] | None:
    """By line; None where Python can't say what is a comment."""
    try:
        tokens = tokenize.generate_tokens(io.StringIO(text, newline="").readline)
        return {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}
    except (tokenize.TokenError, SyntaxError, RecursionError):
        return None


def silenced(lines: list[str], first: int, last: int, rule: str) -> bool:
    """Does a comment on the statement's first or last line say to keep quiet?"""
    for number in {first, last}:
        if not 0 < number <= len(lines) or "noqa" not in lines[number - 1].lower():
            continue
        comments = _comments("\n".join(lines))  # a string may say it too
        found = _NOQA.search(lines[number - 1] if comments is None else comments.get(number, ""))
        if found and (
            found["codes"] is None or rule.startswith(tuple(re.split(r"[,\s]+", found["codes"].upper())))
        ):
            return True
    return False
