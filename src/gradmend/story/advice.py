"""The help of a story is the edit itself: the rewriter's first candidate for its lines, as a one-line diff.

Found when a story is told, never while a program is healed: the rewriter's parser takes a moment to load.
"""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from gradmend.model import Conflict
from gradmend.story.words import WITHOUT_EDIT, root

if TYPE_CHECKING:
    from gradmend.fix.source.candidate import Candidate, Project

_LONGEST = 110  # characters of one edited line
_MOST_EDITS = 3

# Edits whose meaning follows from the story's own lines; the others need trials to be worth a word.
_AT_THE_WRITE = frozenset(
    {"rebind", "returned", "loop_item", "inplace_flag", "out_argument", "live_edit", "functional", "collect"}
    | {"localize", "clone_write"}
)
_UPDATE = frozenset({"move", "clone_save"})
_AT_THE_SAVE = frozenset({"clone_save"})
_PARAMETERS = frozenset({"GM104", "GM105", "GM108", "GM203"})
_WITHOUT_WRITE = frozenset({"GM131", "GM110"})  # second backwards have a story of their own


def advised(conflict: Conflict) -> Conflict:
    """The conflict with its edit in front of the helps; at most once, and never instead of the story."""
    if conflict.edit or not conflict.writes or conflict.rule in _WITHOUT_WRITE:
        return conflict
    try:
        edit = _edit(conflict)
    except Exception:  # a parser that is missing or gives up must not take the story's place
        edit = ""
    edit = edit or _plain_edit(conflict)
    first = edit or WITHOUT_EDIT.get(conflict.rule)
    helps = (first, *conflict.help) if first and first not in conflict.help else conflict.help
    return replace(conflict, edit=edit, help=helps)


def prover() -> str:
    """ "`gradmend fix train.py` tries and proves it", where a script runs."""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    if not script.endswith(".py") or "site-packages" in script or not os.path.isfile(script):
        return ""
    try:
        near = os.path.relpath(script)
    except (OSError, ValueError):
        near = script
    return f"`gradmend fix {script if near.startswith('..') else near}` tries and proves it"


def _edit(conflict: Conflict) -> str:
    from gradmend.fix.rewrites import propose
    from gradmend.fix.source.candidate import Project
    from gradmend.fix.source.facts import from_json

    facts = from_json(conflict.as_json())
    texts = {file: "".join(linecache.getlines(file)) for file in facts.files}
    project = Project({file: text for file, text in texts.items() if text})
    kinds = _kinds(conflict)
    lines = {(p.file, p.line) for e in (*facts.writes[:1], facts.saved) if e is not None for p in e.chain}
    lines |= {(p.file, p.line) for p in facts.backward}
    for candidate in propose(project, facts):
        if candidate.kind == "move" and "move" in kinds:
            return candidate.title
        if candidate.kind in kinds:
            told = _told(candidate, project, lines)
            if told:
                return told
    return ""


def _kinds(conflict: Conflict) -> frozenset[str]:
    save, write = conflict.saved, conflict.writes[0]
    if conflict.rule in _PARAMETERS or (save is not None and save.leaf):
        return _UPDATE
    names = save.tensor.name if save else None, write.tensor.name
    if save is not None and None not in names and root(str(names[0])) != root(str(names[1])):
        return _AT_THE_SAVE  # another name of the same memory: a new tensor under one would leave the other behind
    return _AT_THE_WRITE | _AT_THE_SAVE


def _told(candidate: Candidate, project: Project, lines: set[tuple[str, int]]) -> str:
    """The candidate as one line, if it touches the story's lines and is short enough for that."""
    (file, new), *others = candidate.sources.items()
    if others:
        return ""
    old_lines, new_lines = project.sources[file].splitlines(), new.splitlines()
    told: list[str] = []
    touches = False
    changes = [
        op
        for op in SequenceMatcher(None, old_lines, new_lines, autojunk=False).get_opcodes()
        if op[0] != "equal"
    ]
    if len(changes) > _MOST_EDITS:
        return ""
    for kind, i, j, a, b in changes:
        texts = [f"`{line.strip()}`" for line in new_lines[a:b]]
        if any(len(t) > _LONGEST for t in texts):
            return ""
        touches = touches or any((file, n) in lines for n in range(i + 1, max(j, i + 1) + 1))
        if kind == "insert" and b - a <= 2:
            told.append(
                f"put {' and '.join(texts)} before line {i + 1}" if i < len(old_lines) else f"add {texts[0]}"
            )
        elif kind == "replace" and j - i == b - a <= 2:
            told += [f"write line {n} as {text}" for n, text in enumerate(texts, i + 1)]
        else:
            return ""
    return "; ".join(told) if touches else ""


def _plain_edit(conflict: Conflict) -> str:
    """Without the rewriter: `y += 1` and its like, by Python's own parser."""
    from gradmend.story.failures.scene import Scene

    save, write = conflict.saved, conflict.writes[0]
    same = save is not None and save.tensor.name == write.tensor.name and not save.leaf
    rebound = Scene(write.site).rebound if same else None
    frame = write.site.user
    return f"write line {frame.line} as `{rebound}`" if rebound and frame is not None else ""
