"""One file checked: read, parsed, walked; noqa and settings applied. What can't be read or parsed is told too."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import stat
from dataclasses import dataclass, field, replace

from gradmend.check import noqa, notebooks, words
from gradmend.check.alone import is_alone
from gradmend.check.analysis import Analysis, analyse
from gradmend.check.findings import UNCHECKED, Finding, Place, StaticFix
from gradmend.check.programs import drives
from gradmend.check.project import Project, parse
from gradmend.check.rewrite import lines_of, text_of
from gradmend.check.settings import Nearest, Settings
from gradmend.check.syntax import misplaced

# Files in which none of this stands can hold no finding: a gradient needs torch, or a backward from elsewhere.
_WORTH = re.compile(rb"torch|backward|lightning|\.step\(|autograd")
_WRITES = re.compile(
    rb"[-+*/%&|^@<>]=|\]\s*=[^=]|_\(|inplace|\.data\b|out=|backward|\.step\(|max_norm|numpy|\bctx\b|\bgrad\(|"
    rb"inference_mode|sparse|_backward_hook"
)


@dataclass(slots=True)
class Result:
    file: str
    findings: list[Finding] = field(default_factory=list)
    unreadable: str = ""  # why it could not be read
    lines: int = 0
    stopped: bool = False  # too much to be followed to its end
    depends: dict[str, str] = field(default_factory=dict)  # file -> fingerprint of what the findings rest on


def check_file(file: str, source: bytes | None = None) -> Result:
    """All findings of one file, before settings: those in other files that it shows as well."""
    result = Result(file)
    if source is None:
        try:
            if not stat.S_ISREG(os.stat(file).st_mode):
                result.unreadable = "can't read it: not a regular file"  # a FIFO would be waited for
                return result
            with open(file, "rb") as handle:
                source = handle.read()
        except (OSError, ValueError) as error:
            result.unreadable = f"can't read it: {getattr(error, 'strerror', None) or error}"
            return result
    result.depends[file] = fingerprint(source)
    result.lines = source.count(b"\n")
    notebook = None
    if file.endswith(".ipynb"):
        try:
            notebook = notebooks.read(source.decode("utf-8-sig"))
        except ValueError as error:
            result.unreadable = f"can't read it: {error}"
            return result
        source = notebook.source.encode("utf-8", "replace")
        for wrong in notebook.broken:
            found = _syntax(file, wrong.lineno or 1, max(1, wrong.offset or 1), wrong.msg or "invalid syntax")
            result.findings.append(notebooks.in_cell(found, notebook))
    tree = _parse(source, file, result)
    if tree is None:
        written = text_of(source) or ""
        if noqa.skips_file(written):
            result.findings = []
        own = _split(written)
        result.findings = [
            f for f in result.findings if not noqa.silenced(own, f.place.line, f.place.line, f.rule)
        ]
        if notebook is not None:
            result.findings = [notebooks.in_cell(f, notebook) for f in result.findings]
        return result
    text = text_of(source)
    if text is None or noqa.skips_file(text):
        return result
    project = Project({file: tree})
    analysis = Analysis([])
    if worth(source) or drives(project.module(file), project, worth):
        analysis = analyse(file, tree, project, lambda: drives(project.module(file), project, worth))
    result.stopped = analysis.stopped
    for other in project.asked - {file}:
        result.depends[other] = fingerprint_of(other)
    lines = {file: _split(text)}
    calls = [
        words.at_the_call(f, f.via) for f in analysis.findings if f.via is not None and f.rule != UNCHECKED
    ]
    for finding in (*analysis.findings, *calls):
        there = finding.stands_for
        if there is not None and noqa.silenced(lines[there.file], there.line, there.end_line, finding.rule):
            continue
        where = finding.place
        if where.file not in lines:
            lines[where.file] = _lines_of(where.file)
        if not noqa.silenced(lines[where.file], where.line, where.end_line, finding.rule):
            finding = _fitted(finding, lines)
            result.findings.append(
                notebooks.in_cell(finding, notebook)
                if notebook is not None and where.file == file
                else finding
            )
    return result


def worth(source: bytes) -> bool:
    return bool(_WORTH.search(source)) and bool(_WRITES.search(source))


def _parse(source: bytes, file: str, result: Result) -> ast.Module | None:
    if b"\0" in source:
        result.findings.append(_syntax(file, 1, 1, "the file holds null bytes: is it Python?"))
        return None
    try:
        tree = parse(source, file)
        wrong = misplaced(tree)
        if wrong is None:
            return tree
        raise wrong
    except SyntaxError as error:
        column = max(1, error.offset or 1)
        result.findings.append(
            _syntax(file, max(1, error.lineno or 1), column, error.msg or "invalid syntax")
        )
    except (ValueError, UnicodeDecodeError) as error:
        result.findings.append(_syntax(file, 1, 1, str(error)))
    except (RecursionError, MemoryError):
        result.findings.append(_syntax(file, 1, 1, "nested too deeply to be parsed"))
    return None


def _syntax(file: str, line: int, column: int, message: str) -> Finding:
    return Finding(
        Place(file, line, column, line, column + 1), UNCHECKED, "error", f"syntax error: {message}"
    )


def _split(text: str) -> list[str]:
    """Lines as Python counts them: a lone carriage return ends one too."""
    return [line.rstrip("\r\n") for line in lines_of(text)]


def _lines_of(file: str) -> list[str]:
    try:
        with open(file, "rb") as handle:
            return _split(text_of(handle.read()) or "")
    except OSError:
        return []


def _fitted(finding: Finding, lines: dict[str, list[str]]) -> Finding:
    """Places in characters, as editors count, where ast counts bytes; and a fix that suits its line."""
    own = lines[finding.place.file]
    return replace(
        finding,
        place=_in_characters(finding.place, own),
        related=tuple((m, _in_characters(p, lines.get(p.file, []))) for m, p in finding.related),
        fix=_fitted_fix(finding.fix, own),
    )


def _in_characters(place: Place, lines: list[str]) -> Place:
    if max(place.line, place.end_line) > len(lines) or place.line < 1:
        return place
    first, last = lines[place.line - 1], lines[place.end_line - 1]
    if first.isascii() and last.isascii():
        return place
    return replace(
        place, column=_characters(first, place.column), end_column=_characters(last, place.end_column)
    )


def _fitted_fix(fix: StaticFix | None, lines: list[str]) -> StaticFix | None:
    if fix is None:
        return None
    edits = []
    for edit in fix.edits:
        if edit.end_line > len(lines):
            return None
        first, last = lines[edit.line - 1], lines[edit.end_line - 1]
        edit = replace(
            edit, column=_characters(first, edit.column), end_column=_characters(last, edit.end_column)
        )
        if edit.line > 1 and lines[edit.line - 2].endswith("\\"):
            return None  # the line goes on from the one above: a new line would end it
        if "\n" in edit.text and first[: edit.column - 1].strip():
            # Something stands before it on the line: `if x: y += 1`, `a = 1; y += 1`.
            if edit.text.startswith("with "):
                return None
            edit = replace(edit, text=edit.text.partition("\n")[0] + "; ")
        elif "\n" in edit.text:
            edit = replace(edit, text=_indented(edit.text, first))
        edits.append(edit)
    name = fix.edits[0].text.partition(" = ")[0]
    safe = fix.safe and is_alone("\n".join(lines), name, fix.edits[0].line)
    return replace(fix, edits=tuple(edits), safe=safe)


def _indented(text: str, line: str) -> str:
    """The text of an insertion, its second line indented as the line it stands before: tabs stay tabs."""
    margin = line[: len(line) - len(line.lstrip())]
    head, _, tail = text.partition("\n")
    more = tail[len(margin) :]
    return f"{head}\n{margin}{more.replace('    ', chr(9)) if chr(9) in margin else more}"


def _characters(line: str, column: int) -> int:
    return len(line.encode("utf-8")[: column - 1].decode("utf-8", "ignore")) + 1


def fingerprint(source: bytes) -> str:
    return hashlib.blake2b(source, digest_size=12).hexdigest()


def fingerprint_of(file: str) -> str:
    try:
        with open(file, "rb") as handle:
            return fingerprint(handle.read())
    except OSError:
        return ""


def python_files(paths: list[str], settings: Settings | Nearest) -> tuple[list[str], list[tuple[str, str]]]:
    """The files to check, and paths that can't be read, with why. Folders are walked; names given are taken as they are."""
    found: dict[str, str] = {}  # by the file itself: one with two names is checked once, by the first
    missing: list[tuple[str, str]] = []

    def closed(error: OSError) -> None:
        missing.append((str(error.filename), error.strerror or "can't be read"))

    for path in paths:
        if os.path.isdir(path):
            for folder, folders, names in os.walk(path, onerror=closed):
                folders[:] = sorted(d for d in folders if not settings.excluded(os.path.join(folder, d)))
                for name in sorted(names):
                    file = os.path.join(folder, name)
                    wanted = name.endswith((".py", ".ipynb", ".pyw")) and not settings.excluded(file)
                    if wanted and os.path.isfile(file):  # no FIFOs, no links that lead nowhere
                        found.setdefault(os.path.realpath(file), os.path.normpath(file))
        elif os.path.exists(path):
            found.setdefault(os.path.realpath(path), os.path.normpath(path))
        else:
            missing.append((path, "no such file or folder"))
    return list(found.values()), missing
