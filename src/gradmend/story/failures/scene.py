"""What a cause may look at: the message, the line that raised it, and that line's source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import Any

from gradmend.model import Frame, Site
from gradmend.story.names import op_name, written_name
from gradmend.story.source import Source, parse, running, statement_of


@dataclass(frozen=True)
class Told:
    """A cause in words: what happened, what else is worth knowing, and what to change."""

    message: str
    notes: tuple[str, ...] = ()
    help: tuple[str, ...] = ()
    # Of the same file: the line to look at first, where it is not the one that raised.
    write: ast.stmt | None = None


Tell = Callable[["re.Match[str]", "Scene"], Told]


@dataclass(frozen=True)
class Cause:
    """One row: PyTorch's message, and the story it stands for."""

    rule: str
    pattern: re.Pattern[str]
    tell: Tell


def cause(rule: str, pattern: str, tell: Tell) -> Cause:
    return Cause(rule, re.compile(pattern, re.DOTALL), tell)


@dataclass(frozen=True)
class Unpacked:
    """Several views made by one statement: one of their names, the line, and what they are cut from."""

    name: str
    line: int
    source: str
    base: str
    cloned: str | None  # the statement with a clone of the source


@dataclass
class Scene:
    """The innermost line of the user's that raised, read from its source where there is any."""

    site: Site
    error: BaseException | None = None
    frame: Frame | None = field(init=False)

    def __post_init__(self) -> None:
        self.frame = self.site.user

    @cached_property
    def op(self) -> str:
        return (op_name(self.frame) if self.frame else None) or ""

    @cached_property
    def written(self) -> str | None:
        return written_name(self.frame, self.op) if self.frame else None

    @cached_property
    def source(self) -> Source | None:
        return parse(self.frame.file) if self.frame else None

    @cached_property
    def statement(self) -> ast.stmt | None:
        found = statement_of(self.frame) if self.frame else None
        return found[1] if found else None

    @cached_property
    def call(self) -> ast.Call | None:
        """The call that was running; without columns, the statement's own."""
        node = running(self.source, self.frame) if self.source and self.frame else None
        if node is None and isinstance(self.statement, ast.Expr | ast.Assign):
            node = self.statement.value
        return node if isinstance(node, ast.Call) else None

    def named(self, otherwise: str) -> str:
        return f"`{self.written}`" if self.written else otherwise

    @cached_property
    def is_late_view(self) -> bool:
        """Whether the written name is a view whose base requires grad as the result of an op, as the raising frame has it."""
        import torch

        found: Any = None
        tb = self.error.__traceback__ if self.error is not None else None
        while tb is not None:
            code = tb.tb_frame.f_code
            if self.frame is not None and (code.co_qualname, tb.tb_lineno) == (
                self.frame.function,
                self.frame.line,
            ):
                found = tb.tb_frame.f_locals.get(self.written or "")
            tb = tb.tb_next
        return isinstance(found, torch.Tensor) and found._base is not None and not found._base.is_leaf

    def mentions(self, attribute: str) -> bool:
        """Whether the statement reads this attribute, as an update reads `.grad`."""
        if self.statement is None or hasattr(self.statement, "body"):
            return False
        return any(isinstance(n, ast.Attribute) and n.attr == attribute for n in ast.walk(self.statement))

    @cached_property
    def rebound(self) -> str | None:
        """The same line out of place, where its meaning is plain: `u *= c` -> "u = u * c"; of a hook, which gives its
        result back, "return u * c"."""
        text = self._rebound
        if text is None or self.source is None or self.statement is None:
            return text
        function = next(
            (n for n in self.source.ancestors(self.statement) if isinstance(n, ast.FunctionDef)), None
        )
        if function is None or self.statement is not function.body[-1]:
            return text
        name, _, value = text.partition(" = ")
        return f"return {value}" if name in {a.arg for a in function.args.args} else text

    @cached_property
    def _rebound(self) -> str | None:
        return self.out_of_place(self.statement)

    def out_of_place(self, statement: ast.stmt | None) -> str | None:
        match statement:
            case ast.AugAssign(target=ast.Name(), op=op, value=value):
                assign = ast.Assign([statement.target], ast.BinOp(_load(statement.target), op, value))
                return _short(assign)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) as call):
                if self.source is None or name in self.source.imported or not _has_twin(method):
                    return None
                plain = ast.Attribute(ast.Name(name), method.rstrip("_"))
                return _short(ast.Assign([ast.Name(name)], ast.Call(plain, call.args, call.keywords)))
        return None

    @cached_property
    def unpacked(self) -> Unpacked | None:
        """Of the names that this statement reads, the one that an unpacking above made: `s, i = state[t - 1]`."""
        if self.source is None or self.statement is None:
            return None
        read = {
            n.id for n in ast.walk(self.statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        found: Unpacked | None = None
        for node in ast.walk(self.source.tree):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=elements)], value=value):
                    value = self._method_form(value)
                    cloned = _short(ast.Assign(node.targets, _cloned(value)))
                case ast.For(target=ast.Name() as one, iter=value):
                    value = self._method_form(value)
                    elements, cloned = [one], None
                case _:
                    continue
            named = [e.id for e in elements if isinstance(e, ast.Name) and e.id in read]
            if node.lineno <= self.statement.lineno and named and _base(value):
                found = Unpacked(named[0], node.lineno, ast.unparse(value), _base(value), cloned)
        return found

    def _method_form(self, value: ast.expr) -> ast.expr:
        """`torch.chunk(h, 2)` -> `h.chunk(2)`: what the views are cut from stands first."""
        match value:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=module), attr=name), args=[first, *rest], keywords=words
            ) if self.source is not None and module in self.source.imported:
                return ast.Call(ast.Attribute(first, name), rest, words)
        return value

    def written_before(self, base: str, after: int) -> ast.stmt | None:
        """The last statement above this one, and from line `after` on, that writes to `base` in place."""
        if self.source is None or self.statement is None:
            return None
        found = [
            node
            for node in ast.walk(self.source.tree)
            if isinstance(node, ast.stmt)
            and after <= node.lineno < self.statement.lineno
            and _writes_to(node, base)
        ]
        return max(found, key=lambda node: node.lineno, default=None)

    @cached_property
    def copied(self) -> str | None:
        """`y[1:] = y[:-1]` -> "y[1:] = y[:-1].clone()"."""
        match self.statement:
            case ast.Assign(targets=[target], value=ast.Subscript() as value):
                return _short(ast.Assign([target], ast.Call(ast.Attribute(value, "clone"), [], [])))
            case ast.AugAssign(target=target, op=op, value=ast.Subscript() as value):
                return _short(ast.AugAssign(target, op, ast.Call(ast.Attribute(value, "clone"), [], [])))
        return None

    @cached_property
    def without_out(self) -> str | None:
        """`torch.mul(a, b, out=buf)` -> "buf = torch.mul(a, b)"."""
        call = self.call
        if call is None:
            return None
        out = [k.value for k in call.keywords if k.arg == "out"]
        rest = [k for k in call.keywords if k.arg != "out"]
        if len(out) != 1 or not isinstance(out[0], ast.Name | ast.Attribute | ast.Tuple):
            return None
        value = ast.Call(call.func, call.args, rest)
        if isinstance(self.statement, ast.Expr):
            return _short(ast.Assign([out[0]], value))
        return _short(value)


def _base(node: ast.expr) -> str:
    """`state` of `state[t - 1]` and `state.unbind(0)`."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _cloned(value: ast.expr) -> ast.expr:
    """`h.chunk(2)` -> `h.clone().chunk(2)`: a tuple of views has no clone."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return ast.Call(ast.Attribute(_cloned(value.func.value), value.func.attr), value.args, value.keywords)
    return ast.Call(ast.Attribute(value, "clone"), [], [])


def _writes_to(node: ast.stmt, base: str) -> bool:
    match node:
        case ast.AugAssign(target=target):
            return _base(target) == base
        case ast.Assign(targets=targets):
            return any(isinstance(t, ast.Subscript) and _base(t) == base for t in targets)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method) as function)):
            return _base(function) == base and method.endswith("_") and not method.endswith("__")
    return False


def write_op(node: ast.stmt) -> str:
    """The op that a writing statement runs, as the source has it."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method))):
            return method
        case ast.AugAssign(op=op):
            return {ast.Add: "add_", ast.Sub: "sub_", ast.Mult: "mul_", ast.Div: "div_"}.get(type(op), "")
    return "__setitem__"


def _has_twin(method: str) -> bool:
    """Whether an in-place method has an out-of-place form: relu_ has, zero_ has not."""
    import torch

    if not method.endswith("_") or method.endswith("__"):
        return False
    return callable(getattr(torch.Tensor, method.rstrip("_"), None))


def _load(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target), mode="eval").body


def _short(node: ast.AST) -> str | None:
    text = ast.unparse(ast.fix_missing_locations(node))
    return text if len(text) <= 72 and "\n" not in text else None


def site_of(error: BaseException | TracebackType | None) -> Site:
    """Where an exception was raised, innermost frame first."""
    from gradmend.capture.sites import raw_of, resolve

    tb = error.__traceback__ if isinstance(error, BaseException) else error
    return resolve(raw_of(tb))


def error_facts(error: BaseException, message: str) -> dict[str, Any]:
    """A Session's `error`: what was raised, and by which line of the program."""
    user = site_of(error).user
    file, line = (None, None) if user is None else (user.file, user.line)
    return {"type": type(error).__name__, "message": message, "file": file, "line": line}
