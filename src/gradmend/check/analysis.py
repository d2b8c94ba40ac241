"""One file: walked as the program it is, then each function and class that the program did not reach, on its own."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gradmend.check import words
from gradmend.check.callers import Callers, Definition
from gradmend.check.findings import Finding, place_of
from gradmend.check.project import Module, Project
from gradmend.check.risk import Risks
from gradmend.check.values import Class, Function, Instance, Value, unknown
from gradmend.check.walk.frames import Enough, Frame
from gradmend.check.walk.walker import Walker

_BASE = 30_000
_PER_STATEMENT = 30
_MOST = 2_000_000
# What PyTorch refuses in grad mode alone: of a function that is tried on its own, the mode is its callers'.
_BY_MODE = frozenset({"GM121", "GM122", "GM123", "GM125", "GM126", "GM127"})


@dataclass(frozen=True, slots=True)
class Analysis:
    findings: list[Finding]
    stopped: bool = False  # the allowance was used up before all of it was walked


def analyse(file: str, tree: ast.Module, project: Project, drives: Callable[[], bool] = bool) -> Analysis:
    """The findings that one file shows. It never fails: what can't be walked is told or left.

    `drives`: whether it is worth walking although its own lines hold nothing that can go wrong.
    """
    risks = Risks(tree)
    if not risks.any and not drives():
        return Analysis([])
    module = project.module(file)
    module.main = True
    walker = Walker(project, min(_MOST, _BASE + _PER_STATEMENT * risks.statements))
    module.declared = True
    _program(walker, module)
    _rest(walker, module, risks)
    # A program's conflict may lie in a module that it imports: whoever asked for that file is told.
    return Analysis(sorted(walker.ledger.findings.values(), key=lambda f: f.order), walker.stopped)


def _guarded(walker: Walker, walk: Callable[[], object], module: Module, node: ast.AST) -> None:
    """Walk, whatever comes, and begin anew after it."""
    walker.ledger.since = walker.ledger.tick
    try:
        walk()
    except Enough:
        pass  # with arguments of which nothing is known, a long way is rarely worth its end
    except RecursionError:
        walker.told(words.too_deep(place_of(module.file, node)))
    walker.begin()


def _program(walker: Walker, module: Module) -> None:
    """The module's own statements, one by one: one that is nested too deeply does not cost the others."""
    frame = Frame(module, module.env)
    walker.frames.append(frame)
    for statement in module.tree.body:
        path = walker.path
        try:
            if walker.run_block([statement]):
                break
        except Enough:
            walker.stopped = True
            break
        except RecursionError:
            walker.told(words.too_deep(place_of(module.file, statement)))
            walker.begin()
            walker.frames.append(frame)
            walker.path = path
    walker.begin()


def _rest(walker: Walker, module: Module, risks: Risks) -> None:
    """What the program did not run: with arguments of which nothing is known."""
    # A program that never calls backward shows nothing of what its models do in training.
    seen = set(walker.visited) if walker.ledger.backwards else set()
    walker.deepest = 7
    known = Callers().add(module.tree, module.file)
    for value in list(module.env.values()):
        if isinstance(value, Function) and value.module is module:
            if id(value.node) not in seen and id(value.node) in risks.functions:
                _fresh(walker, risks, value.node)
                _try(walker, value, [], module, known)
        elif isinstance(value, Class) and value.module is module:
            _class(walker, value, module, risks, seen, known)


def _fresh(walker: Walker, risks: Risks, node: Any) -> None:
    walker.left = 3_000 + _PER_STATEMENT * risks.sizes.get(id(node), 20)


def _class(walker: Walker, cls: Class, module: Module, risks: Risks, seen: set[int], known: Callers) -> None:
    methods = [m for m in cls.attrs.values() if isinstance(m, Function) and m.module is module]
    wanted = [
        m
        for m in methods
        if id(m.node) in risks.functions or (m.name == "forward" and risks.of_class(cls.node))
    ]
    wanted = [m for m in wanted if id(m.node) not in seen and m.name not in ("__init__", "__new__")]
    if not wanted:
        return
    holder: list[Instance] = []
    custom: list[bool] = []

    def build() -> None:
        walker.frames.append(Frame(module, module.env))
        if any(n.endswith("autograd.Function") for n in walker.classes.outside(cls)):
            custom.append(True)
            return
        made = walker.classes.instantiate(cls, [], {}, cls.node)
        if isinstance(made, Instance):
            for part in walker.modules.submodules(made):
                part.stray = True
            made.stray = True
            holder.append(made)

    # What a base in another file does to an object is seldom worth its price.
    walker.left, walker.deepest = 1_500 + _PER_STATEMENT * risks.sizes.get(id(cls.node), 50), 5
    _guarded(walker, build, module, cls.node)
    walker.deepest = 7
    if not holder:
        functions = [m for m in wanted if m.name == "forward"]
        if functions and custom:
            _fresh(walker, risks, functions[0].node)
            _guarded(walker, partial(_function_class, walker, cls, module), module, cls.node)
        return
    for method in sorted(wanted, key=lambda m: m.name != "forward"):
        if id(method.node) in walker.visited and id(method.node) in seen:
            continue
        first: list[Value] = (
            [] if method.kind == "static" else [cls] if method.kind == "class" else [holder[0]]
        )
        _fresh(walker, risks, method.node)
        # In which order methods are called, nobody knows: each finds the object as __init__ left it.
        before = dict(holder[0].attrs)
        _try(walker, method, first, module, known)
        holder[0].attrs.clear()
        holder[0].attrs.update(before)


def _function_class(walker: Walker, cls: Class, module: Module) -> None:
    """A custom autograd Function that nobody applies here."""
    walker.frames.append(Frame(module, module.env))
    walker.functions.check_function(cls)


def _try(walker: Walker, function: Function, first: list[Value], module: Module, known: Callers) -> None:
    """One function on its own, in the grad mode of those who call it, as far as this file shows them."""
    there, backwards = dict(walker.ledger.findings), walker.ledger.backwards
    owner = function.cls.name if function.cls is not None else ""
    called = Definition(module.file, owner, function.name)
    quiet = known.never_in_grad_mode(called) or walker.modes.get(id(function.node)) == {False}
    # What has no underscore may be called from anywhere: there, only what rests on the mode alone is let go.
    walker.grad_mode = not (quiet and function.name.startswith("_"))
    _guarded(walker, partial(_alone, walker, function, first, module), module, function.node)
    if function.name == "forward" or (walker.ledger.backwards > backwards and not quiet):
        return  # it trains, or is what training calls: grad mode is on
    for key, finding in list(walker.ledger.findings.items()):
        if finding is not there.get(key) and finding.rule in _BY_MODE:
            del walker.ledger.findings[key]
            if not quiet:
                walker.ledger.findings[key] = replace(
                    finding, severity="warning", tried=f"{owner}.{function.name}"
                )


def _alone(walker: Walker, function: Function, first: list[Value], module: Module) -> None:
    walker.frames.append(Frame(module, module.env))
    spec = function.node.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args)][len(first) :]
    given = [unknown(name) for name in names]
    for value in given:
        value.likely = function.name == "forward"
    args = [*first, *given]
    keywords: dict[str, Value] = {a.arg: unknown(a.arg) for a in spec.kwonlyargs}
    before = walker.ledger.backwards
    result = walker.calls.call_function(function, args, keywords, function.node)
    if walker.ledger.backwards == before:
        roots = [n for _, t in walker.tensors_in(result) if (n := walker.tensors.node_of(t)) is not None]
        walker.ledger.backward(roots, walker.at(function.node), (), retain=True, assumed=True)
