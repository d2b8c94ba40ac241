"""Move the update below the backward that needs the old values (`step()`, an EMA, a clamp, a restore), or that
backward with its own update above it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.rewrites.clone_write import written
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts, Place
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 15
_NOTE = (
    "the update now runs after that backward(): gradients are those of the forward that ran. "
    "If the later loss was meant at the updated parameters, compute its forward again after the update instead."
)
_WRITE_NOTE = "the write now runs after that backward(), which sees what the forward saw"
_EARLIER = (
    "that backward() now runs before the update: gradients are those of the forward that ran. "
    "If its loss was meant at the updated parameters, compute its forward again after the update instead."
)


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if not facts.backward:
        return
    note = _NOTE if facts.of_parameters else _WRITE_NOTE
    yield from _together(project, facts, note)
    for nth, event in syntax.events(facts):
        chain = event.chain if len(event.chain) > 1 else (*event.chain, *_callers(project, event.chain))
        for depth, place, tree in syntax.spots(project, chain):
            for at in facts.backward:
                if at.file != place.file or at.line == place.line:
                    continue
                written = tree.statements(place.line, place)
                asked = tree.statements(at.line, at)
                if not written or not asked or tree.scope(written[0]) is not tree.scope(asked[0]):
                    continue
                for order, (unit, below) in enumerate(_moves(tree, written[0], asked[0])):
                    new = moved(tree, [unit], below)
                    if new is None:
                        continue
                    title = f"move {syntax.spoken(tree, [unit])} below the backward() {_where(tree, below)}"
                    rank = RANK + nth + 2 * depth + order
                    yield Candidate(title, "move", rank, {place.file: new}, note)
    yield from _out_of_loops(project, facts, note)
    yield from _after_the_loop(project, facts, note)
    yield from _above(project, facts)


def _together(project: Project, facts: Facts, note: str) -> Iterator[Candidate]:
    """All updates that stand in one block, at once: both Q functions' steps below the last backward."""
    units: dict[str, dict[int, tuple[cst.CSTNode, cst.CSTNode]]] = {}
    for event in (*facts.writes[:6], *facts.others[:6]):
        for _, place, tree in syntax.spots(project, event.chain):
            found = [
                move for at in facts.backward if at.file == place.file for move in _first(tree, place, at)
            ]
            if found:
                unit, below = found[0]
                units.setdefault(place.file, {})[tree.lines(unit)[0]] = unit, below
                break
    for file, moves in units.items():
        home = project.tree(file)
        assert home is not None
        tree = home
        if len(moves) < 2 or len({id(tree.parent(u)) for u, _ in moves.values()}) != 1:
            continue
        below = max((b for _, b in moves.values()), key=lambda b: tree.lines(b)[1])
        new = moved(tree, [moves[n][0] for n in sorted(moves)], below)
        if new is not None:
            lines = syntax.spoken(tree, [moves[n][0] for n in sorted(moves)])
            title = f"move {lines} below the backward() {_where(tree, below)}"
            yield Candidate(title, "move", RANK - 1, {file: new}, note)


def _out_of_loops(project: Project, facts: Facts, note: str) -> Iterator[Candidate]:
    """A line of the loop that runs the forward (`for b in blocks: x = b(x); b.scale.mul_(0.9)`), in a loop of its own
    below the backward."""
    for nth, event in syntax.events(facts):
        for depth, place, tree in syntax.spots(project, event.chain):
            line = next((tree.parent(n) for n in tree.statements(place.line, place)), None)
            inside = tree.parent(line) if line is not None else None
            loop = tree.parent(inside) if inside is not None else None
            block = tree.parent(loop) if loop is not None else None
            if not isinstance(line, cst.SimpleStatementLine) or not isinstance(inside, cst.IndentedBlock):
                continue
            if not isinstance(loop, cst.For) or not isinstance(block, (cst.IndentedBlock, cst.Module)):
                continue
            others = [n for n in inside.body if n is not line]
            after = list(block.body)[next(i for i, n in enumerate(block.body) if n is loop) + 1 :]
            for at in facts.backward:
                goal = next(
                    (i for i, n in enumerate(after) if at.file == place.file and _holds(tree, n, at)), None
                )
                if goal is None or not others or not _runs_again(tree, loop, line, others):
                    continue
                if _needed(tree, line, [*others, *after[: goal + 1]]):
                    continue
                head = f"for {tree.code(loop.target)} in {tree.code(loop.iter)}:"
                new = moved(tree, [line], after[goal], head=head)
                if new is not None:
                    below = f"below the backward() {_where(tree, after[goal])}"
                    title = f"move {syntax.spoken(tree, [line])} into a loop of its own {below}"
                    yield Candidate(title, "move", RANK + 1 + nth + 2 * depth, {place.file: new}, note)


def _after_the_loop(project: Project, facts: Facts, note: str) -> Iterator[Candidate]:
    """`for loss, opt in zip(losses, opts): loss.backward(); opt.step()`: the losses were made before the loop, and each
    needs what the steps of the others change. All backward calls first, then the steps in a loop of their own."""
    seen: set[tuple[str, int]] = set()
    for nth, event in syntax.events(facts):
        for depth, place, tree in syntax.spots(project, event.chain):
            line = next((tree.parent(n) for n in tree.statements(place.line, place)), None)
            inside = tree.parent(line) if line is not None else None
            loop = tree.parent(inside) if inside is not None else None
            if not isinstance(line, cst.SimpleStatementLine) or not isinstance(loop, cst.For):
                continue
            if not isinstance(inside, cst.IndentedBlock) or (place.file, tree.lines(loop)[0]) in seen:
                continue
            if not any(at.file == place.file and _holds(tree, loop, at) for at in facts.backward):
                continue
            if facts.saved and any(p.file == place.file and _holds(tree, loop, p) for p in facts.saved.chain):
                continue  # the forward runs in the loop too
            units = [
                n for n in inside.body if n is line or _is_update_line(tree, n, calls=("clip_grad", ".step("))
            ]
            others = [n for n in inside.body if not any(n is u for u in units)]
            if not others or not all(_runs_again(tree, loop, u, others) for u in units):
                continue
            seen.add((place.file, tree.lines(loop)[0]))
            head = f"for {tree.code(loop.target)} in {tree.code(loop.iter)}:"
            new = moved(tree, units, loop, head=head)
            if new is not None:
                title = (
                    f"move {syntax.spoken(tree, units)} below the backward() calls, into a loop of their own"
                )
                yield Candidate(title, "move", RANK + nth + 2 * depth, {place.file: new}, note)


_AGAIN = (
    "range",
    "enumerate",
    "zip",
    "reversed",
    "parameters",
    "modules",
    "children",
    "buffers",
    "values",
    "items",
)


def _runs_again(tree: Tree, loop: cst.For, line: cst.CSTNode, others: Sequence[cst.CSTNode]) -> bool:
    """Can the loop be gone through once more, with this line alone?"""
    over, called = loop.iter, ""
    if isinstance(over, cst.Call) and isinstance(over.func, (cst.Name, cst.Attribute)):
        called = over.func.value if isinstance(over.func, cst.Name) else over.func.attr.value
    if loop.orelse is not None or not (syntax.is_place(over) or called in _AGAIN):
        return False
    inner = [n for other in (line, *others) for n in syntax.walk(other)]
    if any(isinstance(n, (cst.Break, cst.Continue, cst.Return)) for n in inner):
        return False
    reads = {n.value for n in syntax.walk(line) if isinstance(n, cst.Name) and syntax.is_read(tree, n)}
    made = {
        n.value
        for other in others
        for n in syntax.walk(other)
        if isinstance(n, cst.Name) and not syntax.is_read(tree, n)
    }
    return not reads & made


def _above(project: Project, facts: Facts) -> Iterator[Candidate]:
    """The backward that needs the old values, with its own update, above the updates: an actor's loss that goes
    through two critics adds to their gradients, so their steps can't wait for it."""
    places = [p for event in (*facts.writes[:6], *facts.others[:6]) for p in event.chain]
    for at in facts.backward:
        tree = project.tree(at.file)
        if tree is None:
            continue
        path = [n for inner in tree.statements(at.line, at)[:1] for n in (inner, *tree.up(inner))]
        asked = next((n for n in path if isinstance(n, cst.SimpleStatementLine)), None)
        block = tree.parent(asked) if asked is not None else None
        if not isinstance(block, (cst.IndentedBlock, cst.Module)):
            continue
        body = list(block.body)
        goal = next(i for i, n in enumerate(body) if n is asked)
        before = [
            i for i in range(goal) if any(_holds(tree, body[i], p) for p in places if p.file == at.file)
        ]
        if not before:
            continue
        top, first, last = min(before), goal, goal
        while top > 0 and _is_update_line(tree, body[top - 1]):
            top -= 1
        while first > max(before) + 1 and "zero_grad(" in tree.code(body[first - 1]):
            first -= 1
        while last + 1 < len(body) and _is_update_line(tree, body[last + 1], calls=("clip_grad", ".step(")):
            last += 1
        units = body[first : last + 1]
        if any(_needed(tree, other, units) for other in body[top:first]):
            continue
        new = moved(tree, units, body[top], above=True)
        if new is not None:
            title = f"move {syntax.spoken(tree, units)} above line {tree.lines(body[top])[0]}"
            yield Candidate(title, "move", RANK + 2, {at.file: new}, _EARLIER)


def _holds(tree: Tree, statement: cst.CSTNode, place: Place) -> bool:
    first, last = tree.lines(statement)
    return first <= place.line <= last


def _is_update_line(
    tree: Tree,
    statement: cst.CSTNode,
    calls: tuple[str, ...] = ("zero_grad(", ".backward(", "clip_grad", ".step("),
) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and any(c in tree.code(statement) for c in calls)


def _first(tree: Tree, place: Place, at: Place) -> list[tuple[cst.CSTNode, cst.CSTNode]]:
    written, asked = tree.statements(place.line, place), tree.statements(at.line, at)
    if not written or not asked or tree.scope(written[0]) is not tree.scope(asked[0]):
        return []
    return list(_moves(tree, written[0], asked[0]))[:1]


def _callers(project: Project, chain: Sequence[Place]) -> Iterator[Place]:
    """Of a write that only memory tells of, no callers are known: each line that calls its function by name."""
    for _, place, tree in syntax.spots(project, tuple(chain)):
        inside = next(iter(tree.statements(place.line, place)), None)
        function = tree.function(inside) if inside is not None else None
        if function is None:
            return
        name = function.name.value
        for file in project.sources:
            other = project.tree(file)
            assert other is not None
            for node in other.nodes:
                if isinstance(node, cst.Call) and syntax.dotted(node.func).rsplit(".", 1)[-1] == name:
                    yield Place(file, other.lines(node)[0])


def _moves(tree: Tree, written: cst.CSTNode, asked: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """The unit to move and what it goes below, in the innermost block that holds both."""
    path = {id(n): n for n in [asked, *tree.up(asked)]}
    for unit in [written, *tree.up(written)]:
        block = tree.parent(unit)
        if not isinstance(block, (cst.IndentedBlock, cst.Module)):
            continue
        body = list(block.body)
        goal = next((i for i, n in enumerate(body) if id(n) in path), None)
        if goal is None:
            continue
        here = next(i for i, n in enumerate(body) if n is unit)
        if here < goal and not _needed(tree, unit, body[here + 1 : goal + 1]):
            yield unit, body[goal]
            for later in body[goal + 1 :]:
                if ".backward(" in tree.code(later):
                    yield unit, later
        loop = tree.parent(block)
        if here > goal and isinstance(loop, cst.For) and _goes_over(loop, asked):
            yield unit, loop  # the next loss needs the old values: once, after all of them
        return


def _goes_over(loop: cst.For, asked: cst.CSTNode) -> bool:
    """`for loss in losses: loss.backward()`: the losses were made before."""
    call = asked.value if isinstance(asked, cst.Expr) else None
    return isinstance(call, cst.Call) and syntax.root_name(call) in {n.value for n in _names(loop.target)}


def _needed(tree: Tree, unit: cst.CSTNode, between: Sequence[cst.CSTNode]) -> bool:
    """Does the unit name or change something that is read before it would run now?"""
    small = unit.body[0] if isinstance(unit, cst.SimpleStatementLine) else None
    made: set[str] = set()
    if isinstance(small, cst.Assign):
        made = {n.value for t in small.targets for n in _names(t.target)}
    for inner in tree.inside(unit):
        if isinstance(inner, cst.BaseSmallStatement):
            made |= {t.value for t in written(inner) if isinstance(t, cst.Name)}
    read = {
        n.value
        for part in between
        for n in syntax.walk(part)
        if isinstance(n, cst.Name) and syntax.is_read(tree, n)
    }
    return bool(made & read)


def _names(target: cst.BaseExpression) -> Iterator[cst.Name]:
    if isinstance(target, cst.Name):
        yield target
    elif isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _names(element.value)


def moved(
    tree: Tree, units: Sequence[cst.CSTNode], goal: cst.CSTNode, *, above: bool = False, head: str = ""
) -> str | None:
    """The text with these statements, and the comments above them, below another one, or above it; under a head of
    their own where one is given, as deep as they stood under theirs."""
    cuts: list[Cut] = []
    block = f"{tree.indent(goal)}{head}{tree.newline}" if head else ""
    for unit in units:
        if isinstance(unit, cst.SimpleStatementLine) and len(unit.body) != 1:
            return None
        first, last = tree.lines(unit)
        while first > 1 and _comment_of(tree, first - 1, tree.indent(unit)):
            first -= 1
        start, end = tree.offset(first, 0), tree.offset(last + 1, 0)
        inner = tree.indent(unit)
        outer = inner if head else tree.indent(goal)
        block += "".join(
            outer + line.removeprefix(inner) if line.startswith(inner) else line
            for line in tree.text[start:end].splitlines(keepends=True)
        )
        if not block.endswith(("\n", "\r")):
            block += tree.newline
        cuts.append((start, end, ""))
    if above:
        line = tree.lines(goal)[0]
        while line > 1 and _comment_of(tree, line - 1, tree.indent(goal)):
            line -= 1
        at = tree.offset(line, 0)
    else:
        at = tree.offset(tree.lines(goal)[1] + 1, 0)
    ended = tree.text[:at].endswith(("\n", "\r"))
    return tree.replace(*cuts, (at, at, block if ended else tree.newline + block))


def _where(tree: Tree, below: cst.CSTNode) -> str:
    """Where the backward() is that something goes below: in a loop or a block, below all of it."""
    first, last = tree.lines(below)
    return f"on line {last}" if first == last else f"in lines {first}-{last}"


def _comment_of(tree: Tree, line: int, indent: str) -> bool:
    text = tree.line_text(line)
    return text.startswith(indent + "#")
