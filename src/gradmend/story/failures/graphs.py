"""Errors that backward raises about the graph itself, other than a second pass through it."""

from __future__ import annotations

import ast
import re

from gradmend.story.failures.scene import Cause, Scene, Told, cause

# Calls that return a tensor, or a number, which the graph does not reach.
_CUTS = {
    "item": "`.item()`",
    "detach": "`.detach()`",
    "detach_": "`.detach_()`",
    "numpy": "`.numpy()`",
    "tolist": "`.tolist()`",
    "no_grad": "`torch.no_grad()`",
    "inference_mode": "`torch.inference_mode()`",
    "argmax": "`argmax`",
    "round": "`round`",
}
_MOST_CUTS = 3


def _no_grad(match: re.Match[str], scene: Scene) -> Told:
    what = "the tensor given to `backward` or `autograd.grad`"
    if match["inputs"]:
        return Told(
            "one of the tensors to differentiate by does not require grad",
            (),
            ("call `.requires_grad_()` on it before it is used, or drop it from `inputs`",),
        )
    notes = [
        f"{what} was not computed from anything that requires grad, so there is nothing to go back through"
    ]
    notes += [f"line {line} cuts the graph: {name}" for line, name in _cuts(scene)]
    return Told(
        "backward starts from a tensor that no gradient flows into",
        tuple(notes),
        (
            "look for what cut the graph: `torch.no_grad()`, `.detach()`, `.data`, `.item()`, `torch.tensor(t)`, "
            "`argmax`, or parameters with `requires_grad=False`",
        ),
    )


def _unused(match: re.Match[str], scene: Scene) -> Told:
    index = match["index"]
    which = f"the tensor at index {index} of `inputs`" if index else "one of the `inputs`"
    return Told(
        f"{which} of `autograd.grad` has no part in the output",
        (
            "the graph goes by tensors, not by names: a tensor made from it later (`x = x * 1`, `.clone()`, `.to(...)`), "
            "or an in-place write that replaced it, is another one",
        ),
        ("pass the tensor that the computation used, or `allow_unused=True` to get None for it",),
    )


def _detached_save(match: re.Match[str], scene: Scene) -> Told:
    return Told(
        "a tensor that an op kept for backward has been cut from its graph with `detach_()` since",
        (),
        ("use `detach()`, which returns a new tensor and leaves the kept one as it was",),
    )


def _negative_slope(match: re.Match[str], scene: Scene) -> Told:
    return Told(
        "an in-place leaky_relu, elu or celu with a negative slope can't be differentiated",
        (
            "in place, backward has only the output; with a negative slope the output's sign no longer tells the "
            "input's",
        ),
        ("drop `inplace=True` (or the underscore) of that activation",),
    )


def _cuts(scene: Scene) -> list[tuple[int, str]]:
    """Lines before this one, in the same function, that leave the graph."""
    if scene.source is None or scene.statement is None or scene.frame is None:
        return []
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    body: ast.AST = next(
        (up for up in scene.source.ancestors(scene.statement) if isinstance(up, functions)), scene.source.tree
    )
    found: dict[int, str] = {}
    for node in ast.walk(body):
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) if name in _CUTS:
                found.setdefault(node.lineno, _CUTS[name])
            case ast.Attribute(attr="data", ctx=ast.Load()):
                found.setdefault(node.lineno, "`.data`")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="tensor")):
                found.setdefault(node.lineno, "`torch.tensor(...)`")
    before = sorted((line, name) for line, name in found.items() if line < scene.frame.line)
    return before[-_MOST_CUTS:]


CAUSES: tuple[Cause, ...] = (
    cause(
        "GM132",
        r"element \d+ of (the input )?tensors does not require grad"
        r"|(?P<inputs>One of the differentiated Tensors does not require grad)",
        _no_grad,
    ),
    cause("GM133", r"Trying to use a saved tensor that has been detached in-place", _detached_save),
    cause(
        "GM134",
        r"differentiated Tensors? (at index (?P<index>\d+) )?appears to not have been used in the graph",
        _unused,
    ),
    cause("GM135", r"In-place \w+ backward calculation is triggered with a negative slope", _negative_slope),
)
