"""What a cause may look at: the message, the line that raised it, and that line's source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType

from gradmend.model import Frame, Site
from gradmend.story.names import op_name, written_name
from gradmend.story.source import Source, parse, running, statement_of


@dataclass(frozen=True)
class Told:
    """A cause in words: what happened, what else is worth knowing, and what to change."""

    message: str
    notes: tuple[str, ...] = ()
    help: tuple[str, ...] = ()


Tell = Callable[["re.Match[str]", "Scene"], Told]


@dataclass(frozen=True)
class Cause:
    """One row: PyTorch's message, and the story it stands for."""

    rule: str
    pattern: re.Pattern[str]
    tell: Tell


def cause(rule: str, pattern: str, tell: Tell) -> Cause:
    return Cause(rule, re.compile(pattern, re.DOTALL), tell)


@dataclass
class Scene:
    """The innermost line of the user's that raised, read from its source where there is any."""

    site: Site
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

    def mentions(self, attribute: str) -> bool:
        """Whether the statement reads this attribute, as an update reads `.grad`."""
        if self.statement is None or hasattr(self.statement, "body"):
            return False
        return any(isinstance(n, ast.Attribute) and n.attr == attribute for n in ast.walk(self.statement))

    @cached_property
    def rebound(self) -> str | None:
        """The same line out of place, where its meaning is plain: `u *= c` -> "u = u * c"."""
        statement = self.statement
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
