"""One file: walked as the program it is, then each function and class that the program did not reach, on its own."""

from __future__ import annotations

import ast
from typing import Any

from gradmend.check.findings import Finding
from gradmend.check.project import Module, Project
from gradmend.check.risk import Risks
from gradmend.check.values import Class, Function, Instance, Value, unknown
from gradmend.check.walk.frames import Enough, Frame
from gradmend.check.walk.walker import Walker

_BASE = 30_000
_PER_STATEMENT = 30
_MOST = 2_000_000


def analyse(file: str, tree: ast.Module, project: Project) -> list[Finding]:
    """The findings that one file shows. It never fails: what can't be walked is left."""
    risks = Risks(tree)
    if not risks.any:
        return []
    module = project.module(file)
    module.main = True
    walker = Walker(project, min(_MOST, _BASE + _PER_STATEMENT * risks.statements))
    module.declared = True
    _guarded(walker, lambda: _program(walker, module))
    _rest(walker, module, risks)
    # A program's conflict may lie in a module that it imports: whoever asked for that file is told.
    return sorted(walker.ledger.findings.values(), key=lambda f: f.order)


def _guarded(walker: Walker, walk: Any) -> None:
    try:
        walk()
    except Enough:
        pass
    except RecursionError:
        pass
    walker.frames.clear()
    walker.active.clear()
    walker.journals.clear()
    walker.path, walker.grad_mode, walker.statement, walker.healed = (), True, None, False
    walker.inference = walker.forward_mode = walker.patched = False
    walker.recomputed = None
    walker.holds.clear()


def _program(walker: Walker, module: Module) -> None:
    walker.frames.append(Frame(module, module.env))
    walker.run_block(module.tree.body)


def _rest(walker: Walker, module: Module, risks: Risks) -> None:
    """What the program did not run: with arguments of which nothing is known."""
    # A program that never calls backward shows nothing of what its models do in training.
    seen = set(walker.visited) if walker.ledger.backwards else set()
    walker.deepest = 7
    for value in list(module.env.values()):
        if isinstance(value, Function) and value.module is module:
            if id(value.node) not in seen and id(value.node) in risks.functions:
                _fresh(walker, risks, value.node)
                _guarded(walker, lambda f=value: _alone(walker, f, [], module))
        elif isinstance(value, Class) and value.module is module:
            _class(walker, value, module, risks, seen)


def _fresh(walker: Walker, risks: Risks, node: Any) -> None:
    walker.left = 3_000 + _PER_STATEMENT * risks.sizes.get(id(node), 20)


def _class(walker: Walker, cls: Class, module: Module, risks: Risks, seen: set[int]) -> None:
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
            holder.append(made)

    # What a base in another file does to an object is seldom worth its price.
    walker.left, walker.deepest = 1_500 + _PER_STATEMENT * risks.sizes.get(id(cls.node), 50), 5
    _guarded(walker, build)
    walker.deepest = 7
    if not holder:
        functions = [m for m in wanted if m.name == "forward"]
        if functions and custom:
            _fresh(walker, risks, functions[0].node)
            _guarded(walker, lambda: _function_class(walker, cls, module))
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
        _guarded(walker, lambda m=method, a=first: _alone(walker, m, a, module))
        holder[0].attrs.clear()
        holder[0].attrs.update(before)


def _function_class(walker: Walker, cls: Class, module: Module) -> None:
    """A custom autograd Function that nobody applies here."""
    walker.frames.append(Frame(module, module.env))
    walker.functions.check_function(cls)


def _alone(walker: Walker, function: Function, first: list[Value], module: Module) -> None:
    walker.frames.append(Frame(module, module.env))
    spec = function.node.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args)][len(first) :]
    args = [*first, *(unknown(name) for name in names)]
    keywords: dict[str, Value] = {a.arg: unknown(a.arg) for a in spec.kwonlyargs}
    before = walker.ledger.backwards
    result = walker.calls.call_function(function, args, keywords, function.node)
    if walker.ledger.backwards == before:
        roots = [n for _, t in walker.tensors_in(result) if (n := walker.tensors.node_of(t)) is not None]
        walker.ledger.backward(roots, walker.at(function.node), (), retain=True, assumed=True)
