"""`# noqa`, `# noqa: GM101, GM2` (codes or their beginnings), and `# gradmend: skip-file`."""

from __future__ import annotations

import re

_NOQA = re.compile(r"#\s*noqa(?::\s*(?P<codes>[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*))?", re.IGNORECASE)
_SKIP = re.compile(r"^[ \t]*#[ \t]*gradmend:[ \t]*skip-file[ \t]*\r?$", re.MULTILINE)


def skips_file(source: str) -> bool:
    return "skip-file" in source and bool(_SKIP.search(source))


def silenced(lines: list[str], first: int, last: int, rule: str) -> bool:
    """Does a comment on the statement's first or last line say to keep quiet?"""
    for number in {first, last}:
        if not 0 < number <= len(lines) or "noqa" not in lines[number - 1].lower():
            continue
        found = _NOQA.search(lines[number - 1])
        if found and (
            found["codes"] is None or rule.startswith(tuple(re.split(r"[,\s]+", found["codes"].upper())))
        ):
            return True
    return False
