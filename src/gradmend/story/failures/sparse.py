"""Errors of PyTorch's sparse tensors, as conflicts of the rules GM301 and up. `gradmend.rules` has the words."""

from __future__ import annotations

import ast
import linecache
from types import FrameType
from typing import Any

from gradmend.model import Conflict, Culprit, Site
from gradmend.rules._messages import Told, recognise

# PyTorch says these in types of its own choosing.
KINDS = (RuntimeError, TypeError, ValueError)


def tell(exc: BaseException, where: Site, *, sure: bool) -> Conflict | None:
    """The conflict behind an error of a sparse tensor; `sure`: only where the message leaves no other cause."""
    story = recognise(type(exc).__name__, str(exc))
    if story is None or (sure and not story.sure):
        return None
    return _retold(story, where)


def tell_missing_grad(exc: AttributeError, where: Site) -> Conflict | None:
    """`A.grad.values()` where A is a sparse result, whose .grad backward leaves None: Python names only None."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or exc.name is None or exc.obj is not None:
        return None
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()
    for owner in _grads_read(line, exc.name):
        if _is_sparse_result(_look_up(owner, trace.tb_frame)):
            story = recognise(
                "UserWarning", ".grad attribute of a Tensor that is not a leaf Tensor is being accessed"
            )
            return None if story is None else _retold(story, where)
    return None


def _grads_read(line: str, name: str) -> list[ast.expr]:
    """What stands before `.grad.<name>` in a line."""
    for text in (line, f"{line}\n    pass"):  # the head of a block, too
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        return [
            node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr == name
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "grad"
        ]
    return []


def _look_up(expression: ast.expr, frame: FrameType) -> Any:
    """A name, or attributes of one that lie in its `__dict__`: nothing is called."""
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    if isinstance(expression, ast.Attribute):
        return getattr(_look_up(expression.value, frame), "__dict__", {}).get(expression.attr)
    return None


def _is_sparse_result(value: Any) -> bool:
    import torch

    if not isinstance(value, torch.Tensor) or value.layout == torch.strided:
        return False
    return value.requires_grad and not value.is_leaf and not value.retains_grad


def _retold(story: Told, where: Site) -> Conflict:
    frame = where.user
    return Conflict(
        rule=story.rule,
        kind="error",
        message=story.title,
        culprits=(Culprit(frame.file, frame.line, "sparse"),) if frame else (),
        notes=(story.happened.rstrip("."),),
        help=(story.write.rstrip("."),),
    )
