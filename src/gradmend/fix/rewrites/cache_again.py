"""A value made once and kept, whose parameters have been updated since, is made again for each backward.

`@cached_property` -> `@property`; a cache on an attribute or under a key is emptied after the update.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import boundary, syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.tree import Tree
from gradmend.model import Carrier, Frame

RANK = 3
NOTE = "the later gradient is taken at the updated parameters: what was kept is computed again for each backward()"


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    held = facts.carrier
    frame = held.stored if held is not None else None
    tree = project.tree(frame.file) if frame is not None else None
    if not facts.second or held is None or frame is None or tree is None:
        return
    if held.how not in ("once", "carried", "shared"):
        return
    for statement in tree.statements(frame.line):
        home = tree.function(statement)
        if held.cached and home is not None:
            yield from _uncached(tree, home, frame)
        if home is not None and home.name.value == "__init__":
            yield from _constructed(tree, statement, home, held, frame)
        test = _kept_by(tree, statement, held)
        if test is not None:
            yield from _emptied(project, facts, held, tree, test)
            yield from _always(tree, test, frame)


def _uncached(tree: Tree, home: cst.FunctionDef, frame: Frame) -> Iterator[Candidate]:
    for decorator in home.decorators:
        name = syntax.dotted(decorator.decorator) or syntax.dotted(getattr(decorator.decorator, "func", home))
        last = name.rsplit(".", 1)[-1]
        if last == "cached_property":
            cut = tree.cut(decorator.decorator, "property")
        elif "cache" in last:
            first, end = tree.lines(decorator)
            cut = (tree.offset(first, 0), tree.offset(end + 1, 0), "")
        else:
            continue
        title = f"compute `{home.name.value}` each time, without `@{last}`"
        yield Candidate(title, "recompute", RANK, {frame.file: tree.replace(cut)}, NOTE)


def _constructed(
    tree: Tree, statement: cst.CSTNode, home: cst.FunctionDef, held: Carrier, frame: Frame
) -> Iterator[Candidate]:
    """`self.adj = softmax(self.emb)` in a constructor -> a property that computes it from what it reads of the object."""
    name = held.name.removeprefix("self.")
    if not isinstance(statement, cst.Assign) or not name.isidentifier() or not tree.own_line(statement):
        return
    params = {p.name.value for p in syntax.walk(home.params) if isinstance(p, cst.Param)}
    made = {
        n.value for n in syntax.walk(home.body) if isinstance(n, cst.Name) and not syntax.is_read(tree, n)
    }
    read = {n.value for n in syntax.walk(statement.value) if isinstance(n, cst.Name)}
    attributes = {n.attr.value for n in syntax.walk(statement.value) if isinstance(n, cst.Attribute)}
    if (read - attributes) & ((params | made) - {"self"}):
        return  # it needs what only the constructor has
    outer, inner = tree.indent(home), tree.indent(statement)
    lines = [f"{outer}@property", f"{outer}def {name}(self):", f"{inner}return {tree.code(statement.value)}"]
    end = tree.offset(tree.lines(home)[1] + 1, 0)
    text = tree.newline + tree.newline.join(lines) + tree.newline
    title = f"compute `self.{name}` each time it is read, by a property"
    sources = {frame.file: tree.replace(tree.without(statement), (end, end, text))}
    yield Candidate(title, "recompute", RANK + 2, sources, NOTE)


def _kept_by(tree: Tree, statement: cst.CSTNode, held: Carrier) -> cst.If | None:
    """`if self.kernel is None:`, `if key not in cache:`, `if not hasattr(self, "kernel"):` around the statement."""
    root = held.name.partition("[")[0].rsplit(".", 1)[-1]
    for above in tree.up(statement):
        if isinstance(above, cst.FunctionDef):
            return None
        if isinstance(above, cst.If) and root in tree.code(above.test):
            return above
    return None


def _emptied(project: Project, facts: Facts, held: Carrier, tree: Tree, test: cst.If) -> Iterator[Candidate]:
    """The cache is emptied after the update, where the function that calls backward can reach it."""
    asked = tree.code(test.test)
    path = held.places[0][0] if held.places else ""
    if "hasattr" in asked:
        text = f"del {path}"
    elif " in " in asked:
        text = f"{path.rpartition('[')[0] or path}.clear()"
    elif asked.endswith("is None"):
        text = f"{path} = None"
    else:
        return
    for there, statement, file in boundary.boundaries(project, facts, held):
        title = f"empty `{path}` after line {there.lines(statement)[1]}, so that it is computed again"
        yield Candidate(
            title, "recompute", RANK, {file: there.replace(boundary.below(there, statement, text))}, NOTE
        )


def _always(tree: Tree, test: cst.If, frame: Frame) -> Iterator[Candidate]:
    """The value is computed at each call: the lines under the test, one level out."""
    if test.orelse is not None or not isinstance(test.body, cst.IndentedBlock):
        return
    first, last = tree.lines(test)
    outer, inner = tree.indent(test), tree.indent(test.body.body[0])
    lines = [tree.line_text(n) for n in range(tree.lines(test.body.body[0])[0], last + 1)]
    if not all(line.startswith(inner) or not line.strip() for line in lines):
        return
    text = "".join(outer + line[len(inner) :] if line.strip() else line for line in lines)
    cut = (tree.offset(first, 0), tree.offset(last + 1, 0), text)
    title = f"compute what line {frame.line} keeps at each call"
    yield Candidate(title, "recompute", RANK + 1, {frame.file: tree.replace(cut)}, NOTE)
