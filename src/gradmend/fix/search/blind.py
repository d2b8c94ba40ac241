"""Programs with writes that no ledger can judge; there, float64 differences of the forward tell.

- A checkpointed region runs its forward again in backward, and PyTorch does not check what that run keeps (2.13).
- A custom Function's forward may overwrite what it has handed to `ctx`: saved are the values at its end, which its
  backward may mean, or not. It may also write to an input without saying so, and only later uses of that input tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.rewrites.clone_write import written
from gradmend.fix.rewrites.functions import customs
from gradmend.fix.rewrites.rebind import inplace_call
from gradmend.fix.source.candidate import Project
from gradmend.fix.source.facts import Event, Facts, Place
from gradmend.fix.source.tree import Tree

_MOST = 12
UNSEEN = "GM110"
_NOT_THE_DERIVATIVE = "the gradient is not the derivative of the forward that ran"


@dataclass(frozen=True, slots=True)
class Blind:
    """What is out of sight, the lines that may be to blame, and how to tell that no edit of them helps."""

    part: str
    suspects: list[Facts]
    meant: str = ""  # the gradient may be another one on purpose


def look(project: Project) -> Blind | None:
    """The part of a program to ask the differences about."""
    if any("checkpoint(" in text for text in project.sources.values()):
        message = f"{_NOT_THE_DERIVATIVE}, and the program checkpoints part of it"
        return Blind("the checkpointed part", _facts(_written_lines(project), message))
    lines = list(_overwritten(project))
    if not lines:
        return None
    message = (
        f"{_NOT_THE_DERIVATIVE}, and a custom Function overwrites what it was given or has handed to ctx"
    )
    meant = f"{_NOT_THE_DERIVATIVE}, and no edit of the custom Function makes it so: right if that is meant"
    return Blind("the custom Function", _facts(lines, message), meant)


def scripted(project: Project, known: Sequence[Facts]) -> list[Facts]:
    """The in-place lines of functions that TorchScript compiled, where something unseen wrote: one of them did."""
    if not any(f.rule == UNSEEN for f in known):
        return []
    places = [
        place
        for place in _written_lines(project)
        if (tree := project.tree(place.file)) is not None and _is_scripted(tree, place)
    ]
    events = tuple(Event("", None, (place,)) for place in dict.fromkeys(places))
    first = next(f for f in known if f.rule == UNSEEN)
    return [replace(first, writes=(event,)) for event in events[:_MOST]]


def _is_scripted(tree: Tree, place: Place) -> bool:
    """Whether the line stands in a function under `@torch.jit.script`, or one that is given to it."""
    statement = next(iter(tree.statements(place.line, place)), None)
    home = tree.function(statement) if statement is not None else None
    if home is None:
        return False
    if any("script" in tree.code(d) for d in home.decorators):
        return True
    classes = {n.name.value for n in tree.up(home) if isinstance(n, cst.ClassDef)}
    calls = [n for n in tree.nodes if isinstance(n, cst.Call) and "script" in tree.code(n.func)]
    given = {n.value for call in calls for a in call.args for n in syntax.walk(a) if isinstance(n, cst.Name)}
    return bool(given & {home.name.value, *classes})


def _facts(places: list[Place], message: str) -> list[Facts]:
    events = [Event("", None, (place,), quiet=True) for place in dict.fromkeys(places)]
    return [Facts(kind="silent", message=message, writes=(event,)) for event in events[:_MOST]]


def _written_lines(project: Project) -> list[Place]:
    """Each line that writes in place."""
    found: list[Place] = []
    for file in project.sources:
        tree = project.tree(file)
        assert tree is not None
        found += [Place(file, tree.lines(node)[0]) for node in tree.nodes if _writes(node)]
    return found


def _writes(node: cst.CSTNode) -> bool:
    index = isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Subscript)
    call = isinstance(node, cst.Call) and inplace_call(node)
    flag = isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "inplace"
    return index or call or flag or isinstance(node, cst.AugAssign)


def _overwritten(project: Project) -> Iterator[Place]:
    """Lines of a forward that write to something which goes to ctx, or to an input that is not marked."""
    for custom in customs(project):
        names = {custom.tree.code(value) for value in custom.kept()}
        if not custom.marks:
            names |= set(custom.inputs)
        yield from _writes_to(custom.tree, custom.forward, names, custom.file)


def _writes_to(tree: Tree, forward: cst.FunctionDef, names: set[str], file: str) -> Iterator[Place]:
    for node in tree.inside(forward):
        if isinstance(node, cst.BaseSmallStatement) and any(tree.code(t) in names for t in written(node)):
            yield Place(file, tree.lines(node)[0])
