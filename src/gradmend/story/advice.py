"""The help of a story is the edit itself, as a one-line diff, where the story's own lines show that it is right.

The text is the rewriter's for the line that writes, where the written variable alone holds its tensor (`sole.py`), or
follows from the call, the save or the flag (`derived.py`). What would need a trial is not said: `gradmend fix` tries and proves.
Found when a story is told, never while a program is healed: the rewriter's parser takes a moment to load.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import shlex
import sys
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from gradmend.folder import is_ours
from gradmend.model import Conflict, Frame
from gradmend.story import derived, iterations
from gradmend.story.source import parse, statement_lines
from gradmend.story.words import ALSO, WITHOUT_EDIT, after_left, common, later_words, stepper

if TYPE_CHECKING:
    from gradmend.fix.source.candidate import Candidate, Project

_LONGEST = 110  # characters of one edited line
_MOST_EDITS = 3

# A new tensor under the name that the line writes.
_AT_THE_WRITE = frozenset({"rebind", "inplace_flag", "out_argument", "functional", "clone_write"})
_PARAMETERS = frozenset({"GM104", "GM105", "GM108", "GM203"})
_UNSEEN = frozenset({"GM110", "GM202"})
_LEFT = (after_left("watch"), after_left("heal"))
_SECOND_BACKWARD = "GM131"  # has a story of its own
_NARROW = frozenset({"float16", "bfloat16"})  # `y = y + x` would widen them where `y += x` did not
# What else may stand between an update and the backward() that it moves below.
_IDLE = ("zero_grad(", "print(", "#")
_MOVE = re.compile(r"move lines? (\d+)(?:-(\d+))? below the backward\(\) on line (\d+)")


def advised(conflict: Conflict) -> Conflict:
    """The conflict with its edit in front of the helps; at most once, and never instead of the story."""
    if conflict.edit or conflict.rule == _SECOND_BACKWARD:
        return conflict
    if (told := _in_a_later_iteration(conflict)) is not None:
        return told
    try:
        edit = _edit(conflict) if conflict.writes else ""
    except Exception:  # source that is not there or gives up must not take the story's place
        edit = ""
    stepped = derived.stepped(conflict) if conflict.writes else ""
    unseen = conflict.rule in _UNSEEN and conflict.help not in _LEFT
    always = WITHOUT_EDIT.get(conflict.rule) if conflict.writes or unseen else ""
    first = edit or stepped or always
    helps = (first, *conflict.help) if first and first not in conflict.help else conflict.help
    return replace(conflict, edit=edit, help=helps)


def _in_a_later_iteration(conflict: Conflict) -> Conflict | None:
    """A copy of the parameters would hide every update from the gradient: the forward is cut off, or computed anew."""
    try:
        found = iterations.later(conflict)
    except Exception:  # as above
        found = None
    if found is None:
        return None
    note, helps = later_words(found, conflict.backward)
    if note in conflict.notes:
        return conflict  # told already
    message = conflict.message.replace(" still needs ", f" of a later {found.run} still needs ", 1)
    return replace(conflict, message=message, notes=(note, *conflict.notes), help=(*helps, *conflict.help))


def prover(conflict: Conflict) -> str:
    """ "`gradmend fix train.py` tries edits, and shows one that it proved", where a script runs."""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    if (
        not script.endswith(".py")
        or "site-packages" in script
        or is_ours(script)
        or not os.path.isfile(script)
    ):
        return ""
    try:
        near = os.path.relpath(script)
    except (OSError, ValueError):
        near = script
    # A program of many ranks is tried as one of one rank: without a launcher it would not start.
    launcher = ["torchrun", "--nproc-per-node", "1", "-m"] if "TORCHELASTIC_RUN_ID" in os.environ else []
    command = shlex.join([*launcher, "gradmend", "fix", script if near.startswith("..") else near])
    edits = (
        "this edit and others" if conflict.edit else "edits"
    )  # a reviewer's order: it may show another one
    # Which forward is meant where parameters were stepped: often its user alone can tell.
    choice = ", or what there is to choose from" if conflict.rule in _PARAMETERS and not conflict.edit else ""
    # What a region reads when it runs again may be out of reach of every edit.
    shows = "shows one if it can prove it" if conflict.rule == "GM208" else "shows one that it proved"
    return f"`{command}` tries {edits}, and {shows}{choice}"


def _edit(conflict: Conflict) -> str:
    write = conflict.writes[0].site.user
    save = conflict.saved.site.user if conflict.saved is not None else None

    def of(frame: Frame | None, edit: str) -> str:
        return _filed(edit, frame) if common(write, save, conflict.backward, frame) is None else edit

    if conflict.rule in _PARAMETERS or (conflict.saved is not None and conflict.saved.leaf):
        if stepper(conflict.writes[0]) is not None:
            return ""  # which of two programs is meant: derived.stepped() asks
        return of(conflict.backward, _moved(conflict)) or of(save, _copied_save(conflict))
    if conflict.kind == "silent":
        return ""
    if derived.owned(conflict):
        try:
            edit = _rewritten(conflict)
        except ImportError:
            edit = _plain_edit(conflict)
        if edit:
            return of(write, edit)
    if edit := derived.flag(conflict):
        return of(write, edit)
    called, edit = derived.copied_argument(conflict)
    return of(called, edit) or of(save, _copied_save(conflict))


def _copied_save(conflict: Conflict) -> str:
    """Of a write that broke several saves, a copy at one of them leaves the others as they were."""
    return "" if any(note.startswith(ALSO) for note in conflict.notes) else derived.copied_save(conflict)


def _filed(edit: str, frame: Frame | None) -> str:
    """Where the story spans several files, "line 5" goes with its own."""
    if frame is None:
        return edit
    parts = edit.split("`")  # what stands between backticks is source
    name = os.path.basename(frame.file)
    parts[::2] = [re.sub(r"\blines? (?=[0-9])", lambda m: f"{name} {m[0]}", p) for p in parts[::2]]
    return "`".join(parts)


def _candidates(conflict: Conflict) -> tuple[Project, list[Candidate]]:
    from gradmend.fix.rewrites import propose
    from gradmend.fix.source.candidate import Project
    from gradmend.fix.source.facts import from_json

    facts = from_json(conflict.as_json())
    texts = {file: "".join(linecache.getlines(file)) for file in facts.files}
    project = Project({file: text for file, text in texts.items() if text})
    return project, propose(project, facts)


def _rewritten(conflict: Conflict) -> str:
    """The rewriter's first candidate of those that change the writing statement alone."""
    frame = conflict.writes[0].site.user
    lines = statement_lines(frame) if frame is not None else None
    if frame is None or lines is None:
        return ""
    write, saved = conflict.writes[0], conflict.saved
    # `h[0] = h[0].add(1)` writes to h all the same, unless h is a list.
    item = (write.tensor.name or "").endswith("]") and bool(write.view or (saved and saved.view))
    barred = write.tensor.dtype in _NARROW or item
    # A copy above the statement is what its own right side reads and saves: `h[t] = net(h[t - 1])`.
    reads = saved is not None and any(
        f.file == frame.file and lines[0] <= f.line <= lines[1] for f in saved.site.users
    )
    project, found = _candidates(conflict)
    for candidate in found:
        if candidate.kind in _AT_THE_WRITE and not (barred and candidate.kind == "rebind"):
            told = _told(candidate, project, frame.file, lines)
            if told and not (reads and told.startswith("put ")):
                return told
    return ""


def _moved(conflict: Conflict) -> str:
    """An update that reads no gradient, and nothing but idle lines between it and the backward() that it moves below."""
    write, at = conflict.writes[0], conflict.backward
    if at is None or not write.site.users:
        return ""
    source = parse(at.file)
    _, found = _candidates(conflict)
    for candidate in found if source is not None else ():
        match = _MOVE.fullmatch(candidate.title)
        if match is None or source is None or int(match[3]) != at.line:
            continue
        unit = next(
            (n for n in ast.walk(source.tree) if isinstance(n, ast.stmt) and n.lineno == int(match[1])), None
        )
        if (
            unit is None
            or unit.end_lineno != int(match[2] or match[1])
            or list(candidate.sources) != [at.file]
        ):
            continue  # several statements move, and what is idle between them is not asked here
        between = [line.strip() for line in source.lines[unit.end_lineno : at.line - 1]]
        idle = all(not line or any(word in line for word in _IDLE) for line in between)
        if idle and "grad" not in ast.unparse(unit).replace("no_grad", ""):
            return candidate.title
    return ""


def _told(candidate: Candidate, project: Project, file: str, lines: tuple[int, int]) -> str:
    """The candidate as one line, if it changes only these lines and is short enough for that."""
    if list(candidate.sources) != [file]:
        return ""
    old_lines, new_lines = project.sources[file].splitlines(), candidate.sources[file].splitlines()
    told: list[str] = []
    changes = [
        op
        for op in SequenceMatcher(None, old_lines, new_lines, autojunk=False).get_opcodes()
        if op[0] != "equal"
    ]
    if len(changes) > _MOST_EDITS:
        return ""
    for kind, i, j, a, b in changes:
        texts = [f"`{line.strip()}`" for line in new_lines[a:b]]
        if any(len(t) > _LONGEST for t in texts) or not lines[0] <= i + 1 <= lines[1]:
            return ""
        if kind == "insert" and b - a <= 2:
            told.append(f"put {' and '.join(texts)} before line {i + 1}")
        elif kind == "replace" and j - i == b - a <= 2:
            told += [f"write line {n} as {text}" for n, text in enumerate(texts, i + 1)]
        else:
            return ""
    return "; ".join(told)


def _plain_edit(conflict: Conflict) -> str:
    """Without the rewriter: `y += 1` and its like, by Python's own parser."""
    from gradmend.story.failures.scene import Scene

    write = conflict.writes[0]
    rebound, frame = Scene(write.site).rebound, write.site.user
    return f"write line {frame.line} as `{rebound}`" if rebound and frame is not None else ""
