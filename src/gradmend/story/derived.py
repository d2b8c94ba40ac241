"""Edits that follow from a story's own lines, by its source alone: a copy for a call, a copy at the save, a flag.

Each is right by what the lines are, with no trial; where that can't be seen, there is no edit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from gradmend.model import Conflict, Frame, Save, Write
from gradmend.story.iterations import parted
from gradmend.story.names import result_name
from gradmend.story.sole import read_after, sole
from gradmend.story.source import Source, parse, running, statement_of
from gradmend.story.words import at as place
from gradmend.story.words import common, is_direct, is_output, root, stepper, two_programs

_LONGEST = 110


def owned(conflict: Conflict) -> str:
    """The variable that the first write's line changes, where it alone holds the tensor; else nothing."""
    write = conflict.writes[0]
    frame, name = write.site.user, root(write.tensor.name or "")
    found = statement_of(frame) if frame is not None and is_direct(write.site) else None
    if found is None or not name.isidentifier():
        return ""
    return name if sole(*found, name, _made_on(conflict.saved, frame, name)) else ""


def _made_on(save: Save | None, near: Frame | None, name: str) -> int:
    """The line on which the saved tensor was returned and got this name."""
    frame = save.site.user if save is not None and is_output(save) else None
    same = (
        frame is not None and near is not None and frame.file == near.file and frame.function == near.function
    )
    return frame.line if same and frame is not None and result_name(frame) == name else 0


def copied_argument(conflict: Conflict) -> tuple[Frame | None, str]:
    """A call writes to what it is given, and nobody reads that afterwards but through its result: give it a copy. And its line."""
    write, save = conflict.writes[0], conflict.saved
    users = write.site.users
    if save is None or not users:
        return None, ""
    wanted = _parameter(users[0], write)
    if wanted is None:
        return users[0], _copied(users[0], save, lambda call: _named(call, write.tensor.name))
    if len(users) == 1:
        return None, ""
    return users[1], _copied(users[1], save, lambda call: _argument(call, wanted))


def _copied(frame: Frame, save: Save, which: Callable[[ast.Call], ast.expr | None]) -> str:
    found = statement_of(frame)
    node = running(found[0], frame) if found else None
    if found is None or not isinstance(node, ast.Call) or _same_line(save.site.user, frame):
        return ""
    source, statement = found
    argument = which(node)
    if not isinstance(argument, ast.Name) or isinstance(statement, ast.Expr):
        return ""  # a call that is a statement is there for what it writes
    name = argument.id
    if not sole(source, statement, name, _made_on(save, frame, name)):
        return ""
    rebound = isinstance(statement, ast.Assign) and any(
        isinstance(t, ast.Name) and t.id == name for t in statement.targets
    )
    if not rebound and read_after(source, statement, name):
        return ""
    inside = [
        n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name and n is not argument
    ]
    return "" if any(isinstance(n.ctx, ast.Load) for n in inside) else _with_clone(source, argument)


def _same_line(one: Frame | None, other: Frame) -> bool:
    return one is not None and (one.file, one.line) == (other.file, other.line)


def _parameter(inside: Frame, write: Write) -> tuple[str, int] | None:
    """By which name and position the function that writes was given the tensor."""
    found = statement_of(inside)
    if found is None:
        return None
    source, statement = found
    for up in source.ancestors(statement):
        if isinstance(up, ast.FunctionDef):
            names = [a.arg for a in up.args.args]
            name = root(write.tensor.name or "")
            if name not in names:
                return None
            return name, names.index(name) - (names[0] in ("self", "cls"))
    return None


def _argument(call: ast.Call, wanted: tuple[str, int]) -> ast.expr | None:
    name, position = wanted
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if any(isinstance(a, ast.Starred) for a in call.args) or not 0 <= position < len(call.args):
        return None
    return call.args[position]


def _named(call: ast.Call, name: str | None) -> ast.expr | None:
    given = [a for a in call.args if isinstance(a, ast.Name) and a.id == name]
    return given[0] if len(given) == 1 else None


def copied_save(conflict: Conflict) -> str:
    """The op that saves keeps a tensor of its own: its result is copied, or it is given a copy."""
    save = conflict.saved
    frame = save.site.user if save is not None else None
    source = parse(frame.file) if frame is not None else None
    node = running(source, frame) if source is not None and frame is not None else None
    if save is None or frame is None or source is None or not isinstance(node, ast.expr):
        return ""
    if _writes(node) or any(_same_line(w.site.user, frame) for w in conflict.writes):
        return ""
    if is_output(save):
        one = save.slot == "result" and is_direct(save.site)
        if one or (
            isinstance(node, ast.Call) and save.tensor.name and result_name(frame) == save.tensor.name
        ):
            return _with_clone(source, node)
        return ""
    if not is_direct(save.site):
        return ""
    given: list[ast.expr] = []
    match node:
        case ast.BinOp(left=left, right=right):
            given = [left, right]
        case ast.Call(func=func, args=args):
            given = [*([func.value] if isinstance(func, ast.Attribute) else []), *args]
    meant = [
        g for g in given if isinstance(g, ast.Name | ast.Attribute) and ast.unparse(g) == save.tensor.name
    ]
    return _with_clone(source, *meant) if meant else ""


def _writes(node: ast.expr) -> bool:
    """Is it an in-place op itself? A copy would take the place of what it writes to."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    return name.endswith("_") or any(k.arg in ("out", "inplace") for k in node.keywords)


def _with_clone(source: Source, *nodes: ast.expr) -> str:
    """The line with `.clone()` behind these expressions of it."""
    line = nodes[0].lineno
    raw = source.lines[line - 1].encode()
    for node in sorted(nodes, key=lambda n: n.col_offset, reverse=True):
        if node.lineno != line or node.end_lineno != line or node.end_col_offset is None:
            return ""
        start, end = node.col_offset, node.end_col_offset
        tight = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
        closed = raw[start - 1 : start] == b"(" and raw[end : end + 1] == b")" and not tight
        if closed:
            end += 1
        text = raw[start:end] if tight or closed else b"(" + raw[start:end] + b")"
        raw = raw[:start] + text + b".clone()" + raw[end:]
    return _line(line, raw.decode())


def _line(line: int, text: str) -> str:
    text = text.split("  #")[0].strip()
    return f"write line {line} as `{text}`" if len(text) <= _LONGEST and _whole(text) else ""


def _whole(text: str) -> bool:
    """Is the statement on this one line?"""
    try:
        ast.parse(text if not text.endswith(":") else f"{text} pass")
    except SyntaxError:
        return text.startswith(("return ", "elif ", "yield ")) and text.count("(") == text.count(")")
    return True


def flag(conflict: Conflict) -> str:
    """`nn.ReLU(inplace=True)` inside a container: what it overwrites was made inside of it, and is nobody else's."""
    write, save = conflict.writes[0], conflict.saved
    frame = write.site.user
    below = [f for f in write.site.frames if f.owner != "user"]
    made = next((f.function.split(".")[0] for f in below if f.function.endswith(".forward")), "")
    contained = any(f.function == "Sequential.forward" for f in below)
    if not made or not contained or frame is None or save is None or is_direct(save.site):
        return ""
    source = parse(frame.file)
    if source is None or not _same_line(save.site.user, frame):
        return ""
    flags = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and _inplace(n, made)]
    if len(flags) != 1 or flags[0].lineno != flags[0].end_lineno:
        return ""
    old = ast.get_source_segment("".join(source.lines), flags[0]) or ""
    new = re.sub(r"\binplace\s*=\s*True\b", "inplace=False", old)
    return f"write `{old}` on line {flags[0].lineno} as `{new}`" if old != new else ""


def _inplace(call: ast.Call, made: str) -> bool:
    if ast.unparse(call.func).rpartition(".")[2] != made:
        return False
    return any(
        k.arg == "inplace" and isinstance(k.value, ast.Constant) and k.value.value is True
        for k in call.keywords
    )


def stepped(conflict: Conflict) -> str:
    """An optimizer stepped between a forward and its backward: PyTorch can't know which of two programs is meant."""
    found = parted(conflict) if stepper(conflict.writes[0]) else None
    if found is None:
        return ""
    used, wrote, asked = found
    near = common(used, wrote, asked)
    line = f" ({place(used, near)})" if used is not None else ""
    return two_programs(
        f"the forward{line} again between {place(wrote, near)} and {place(asked, near)}",
        f"call the backward() of {place(asked, near)} before the step on {place(wrote, near)}",
    )
