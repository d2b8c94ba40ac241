"""What the tensors are called at a line: the written one, the result, the arguments.

Read from the source alone, by the columns of the expression that was running. Where the source does not
settle it, the answer is None: a wrong name misleads more than no name.
"""

from __future__ import annotations

import ast
import re
from functools import cache, lru_cache

from gradmend.model import Frame
from gradmend.story.source import (
    Source,
    enclosing_loop,
    parse,
    running,
    statement_lines,
    statements_at,
)

__all__ = [
    "argument_name",
    "call_name",
    "enclosing_loop",
    "op_name",
    "result_name",
    "statement_lines",
    "written_name",
]

_LONGEST = 48
# Modules of these names hold one activation or dropout: their only argument is what `inplace=True` writes.
_ACTIVATION = re.compile(r"(act|activation|act_fn|nonlin|nonlinearity|drop|dropout)_?\d*$", re.IGNORECASE)
_SLOTS = ("weight", "bias", "running_mean", "running_var")
_OWN_WEIGHT = re.compile(
    r"(linear|addmm|mm|t|conv|convolution|batch_norm|layer_norm|group_norm|embedding|prelu|bilinear)"
)


def written_name(frame: Frame, op: str) -> str | None:
    """`out += x` -> "out"; `x.relu_()` -> "x"; `h[i] = y` -> "h[i]"; `torch.add(a, b, out=buf)` -> "buf"."""
    source = parse(frame.file)
    return None if source is None else _written_name(source, frame, op)


_remember = lru_cache(maxsize=1024)  # a loop comes by the same lines again and again


@_remember
def _written_name(source: Source, frame: Frame, op: str) -> str | None:
    node = running(source, frame) or _only_candidate(source, frame, op)
    match node:
        case ast.AugAssign(target=target):
            return _text(target)
        case ast.Subscript(ctx=ast.Store()):
            return _text(node)
        case ast.Attribute(ctx=ast.Store(), value=value, attr=attr):
            return _text(value if attr in ("data", "grad") else node)
        case ast.Call():
            return _written_by_call(source, node, op)
    return None


def result_name(frame: Frame) -> str | None:
    """`y = x.exp()` -> "y", where the whole right side is the expression that ran."""
    source = parse(frame.file)
    if source is None:
        return None
    node = running(source, frame)
    if node is None:
        statements = statements_at(source, frame.line)
        value = getattr(statements[0], "value", None) if len(statements) == 1 else None
        ops = [n for n in ast.walk(value) if isinstance(n, _OPS)] if isinstance(value, ast.AST) else []
        node = value if len(ops) == 1 and ops[0] is value else None
    if isinstance(node, ast.AugAssign):
        return _text(node.target)
    match source.parents.get(node) if node is not None else None:
        case ast.Assign(targets=[target], value=value) if value is node:
            return _text(target)
        case ast.AnnAssign(target=target, value=value) if value is node:
            return _text(target)
        case ast.NamedExpr(target=target, value=value) if value is node:
            return _text(target)
    return None


def argument_name(frame: Frame, which: int | str, op: str | None = None) -> str | None:
    """The source text of an argument: by position (the receiver of a method is 0) or by the op's parameter."""
    source = parse(frame.file)
    return None if source is None else _argument_name(source, frame, which, op)


@_remember
def _argument_name(source: Source, frame: Frame, which: int | str, op: str | None) -> str | None:
    node = running(source, frame)
    if node is None:
        return None
    if isinstance(node, ast.Call):
        return _call_argument(source, node, which, op)
    index = which if isinstance(which, int) else _position(which, op)
    operands: list[ast.expr] = []
    match node:
        case ast.BinOp(left=left, right=right):
            operands = [left, right]
            if op in ("addmm", "baddbmm"):
                return None
        case ast.AugAssign(target=target, value=value):
            operands = [target, value]
        case ast.UnaryOp(operand=operand):
            operands = [operand]
        case ast.Compare(left=left, comparators=[right]):
            operands = [left, right]
        case ast.Subscript(value=value, slice=slice_):
            operands = [value, slice_]
            if which in ("indices", "index", "mask"):
                index = 1
    if index is None or not -1 < index < len(operands):
        return None
    return _text(operands[index])


_OPS = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript, ast.Compare)


def _only_candidate(source: Source, frame: Frame, op: str) -> ast.AST | None:
    """Without columns: the one thing on the line that writes."""
    found: list[ast.AST] = []
    for statement in statements_at(source, frame.line):
        match statement:
            case ast.AugAssign():
                found.append(statement)
            case ast.Assign(targets=[ast.Subscript() as target]) if op == "__setitem__":
                found.append(target)
            case _ if not hasattr(statement, "body"):
                calls = (n for n in ast.walk(statement) if isinstance(n, ast.Call))
                found += [c for c in calls if _stem(_called(c)) == _stem(op)]
    return found[0] if len(found) == 1 else None


def _written_by_call(source: Source, call: ast.Call, op: str) -> str | None:
    keywords = {k.arg: k.value for k in call.keywords}
    if "out" in keywords:
        return _text(keywords["out"])
    name = _called(call)
    if name.endswith("_") and not name.endswith("__"):
        receiver = _receiver(source, call)
        if receiver is not None:
            return _text(receiver)
        return _text(call.args[0]) if call.args else None
    inplace = keywords.get("inplace")
    says_so = isinstance(inplace, ast.Constant) and inplace.value is True
    same_op = _stem(name) == _stem(op) and bool(_stem(op))
    if says_so or same_op or (op.endswith("_") and not op.endswith("__") and _ACTIVATION.search(name)):
        first = call.args[0] if call.args else keywords.get("input")
        return None if first is None else _text(first)
    return None


def _call_argument(source: Source, call: ast.Call, which: int | str, op: str | None) -> str | None:
    if isinstance(which, str):
        for keyword in call.keywords:
            if keyword.arg == which:
                return _text(keyword.value)
    receiver = _receiver(source, call)
    arguments = list(call.args)
    name = _called(call)
    if name == "einsum":
        return None  # which operand came to which product, it chose
    if receiver is not None and _is_tensor_method(name):
        arguments.insert(0, receiver)
    elif receiver is not None and which in _SLOTS and op and _OWN_WEIGHT.match(op):
        return _text(call.func, suffix=f".{which}")  # self.conv(x) keeps self.conv.weight
    if any(isinstance(a, ast.Starred) for a in arguments):
        return None
    index = which if isinstance(which, int) else _position(which, op)
    if index is None or not -1 < index < len(arguments):
        return None
    return _text(arguments[index])


def _receiver(source: Source, call: ast.Call) -> ast.expr | None:
    """`x` in `x.add_(1)`; None for a function, also for one reached through a module (`torch.add`)."""
    if not isinstance(call.func, ast.Attribute):
        return None
    root: ast.expr = call.func.value
    while isinstance(root, ast.Attribute):
        root = root.value
    if isinstance(root, ast.Name) and root.id in source.imported:
        return None
    return call.func.value


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name):
            return name
        case ast.Name(id=name):
            return name
    return ""


def _stem(name: str) -> str:
    """relu for relu_, relu1, relu_2."""
    return re.sub(r"_?\d*$", "", name.rpartition(".")[2]).rstrip("_").lower()


@cache
def _is_tensor_method(name: str) -> bool:
    import torch

    return callable(getattr(torch.Tensor, name, None))


@cache
def _position(param: str, op: str | None) -> int | None:
    """Where a parameter stands: by the op's schemas where they agree, else only what is the same everywhere."""
    if op:
        import torch

        packet = getattr(torch.ops.aten, op, None)
        found = set()
        for overload in packet.overloads() if packet is not None else ():
            names = [a.name for a in getattr(packet, overload)._schema.arguments]
            if param in names and "out" not in names:
                found.add(names.index(param))
        if len(found) == 1:
            return found.pop()
    return {"self": 0, "input": 0, "other": 1, "exponent": 1, "mat2": 1}.get(param)


@lru_cache(
    maxsize=1024
)  # a tree is kept while its file stays as it is, and a loop comes by the same lines again
def _text(node: ast.expr, suffix: str = "") -> str | None:
    if isinstance(node, ast.Starred | ast.Lambda | ast.Constant):
        return None
    text = ast.unparse(node)
    if isinstance(node, ast.Tuple):
        text = text.removeprefix("(").removesuffix(")")
    text += suffix
    return text if len(text) <= _LONGEST and "\n" not in text else None


_AUGMENTED = {
    ast.Add: "add_",
    ast.Sub: "sub_",
    ast.Mult: "mul_",
    ast.Div: "div_",
    ast.FloorDiv: "floor_divide_",
    ast.Mod: "remainder_",
    ast.Pow: "pow_",
    ast.BitAnd: "bitwise_and_",
    ast.BitOr: "bitwise_or_",
    ast.BitXor: "bitwise_xor_",
    ast.LShift: "bitwise_left_shift_",
    ast.RShift: "bitwise_right_shift_",
}


def op_name(frame: Frame) -> str | None:
    """What the running expression does: `x += y` -> "add_"; `x[i] = y` -> "__setitem__"; `x.exp()` -> "exp"."""
    source = parse(frame.file)
    node = running(source, frame) if source is not None else None
    if source is not None and node is None:
        statements = statements_at(source, frame.line)
        node = statements[0] if len(statements) == 1 else None
        if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
            node = node.value
    return op_of(node)


def op_of(node: ast.AST | None) -> str | None:
    match node:
        case ast.AugAssign(op=op):
            return _AUGMENTED.get(type(op))
        case ast.Subscript(ctx=ast.Store()) | ast.Assign(targets=[ast.Subscript()]):
            return "__setitem__"
        case ast.Subscript():
            return "__getitem__"
        case ast.Attribute(ctx=ast.Store(), attr=attr):
            return f"{attr} ="
        case ast.Call():
            return _called(node) or None
        case ast.BinOp(op=op):
            return (_AUGMENTED.get(type(op)) or "matmul_").rstrip("_")
    return None


_SYMBOLS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}


def call_name(frame: Frame) -> str | None:
    """The running expression as one would say it: "`*`", "`+=`", "sigmoid", "the indexing"."""
    source = parse(frame.file)
    match running(source, frame) if source is not None else None:
        case ast.BinOp(op=op):
            return f"`{_SYMBOLS[type(op)]}`"
        case ast.AugAssign(op=op):
            return f"`{_SYMBOLS[type(op)]}=`"
        case ast.Subscript():
            return "the indexing"
        case ast.Call() as call:
            return _called(call) or None
    return None
