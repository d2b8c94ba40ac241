"""Calls: the project's own functions are walked into."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradmend.check.values import (
    MAYBE,
    NONE,
    Alt,
    Bound,
    Class,
    Const,
    Dict,
    Ext,
    Function,
    Instance,
    Opaque,
    Partial,
    Seq,
    Storage,
    Tensor,
    Value,
    unknown,
)
from gradmend.check.walk.ending import is_abstract
from gradmend.check.walk.frames import Frame

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Calls:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def call(self, node: ast.Call) -> Value:
        function = self.walk.eval(node.func)
        args, keywords = self.arguments(node)
        return self.walk.over(self.walk.force(function), lambda f: self.call_value(f, args, keywords, node))

    def arguments(self, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                inner = self.walk.eval(argument.value)
                if isinstance(inner, Seq):
                    args += inner.items
                    if inner.rest is not None:
                        args += [inner.rest] * 6  # as many as there are parameters to take them
                elif isinstance(inner, Instance) and self.walk.modules.module_items(inner) is not None:
                    args += self.walk.modules.module_items(inner) or []
                else:
                    args += (
                        [self.walk.iteration.element(inner)] * 2
                        if isinstance(inner, Tensor)
                        else [unknown("*") for _ in range(4)]
                    )
            else:
                args.append(self.walk.eval(argument))
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.walk.eval(keyword.value)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, Dict):
                keywords.update({k: v for k, v in value.items.items() if isinstance(k, str)})
        return args, keywords

    def call_value(
        self, function: Value, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        function = self.walk.force(function)
        if isinstance(function, Function):
            return self.call_function(function, args, keywords, node)
        if isinstance(function, Bound):
            return self._call_bound(function, args, keywords, node)
        if isinstance(function, Class):
            return self.walk.classes.instantiate(function, args, keywords, node)
        if isinstance(function, Ext):
            return self.walk.external.external(function.name, args, keywords, node)
        if isinstance(function, Instance):
            return self.walk.classes.call_instance(function, args, keywords, node)
        if isinstance(function, Partial):
            return self.call_value(
                function.function, [*function.args, *args], {**function.keywords, **keywords}, node
            )
        if isinstance(function, Alt):
            return self.walk.over(function, lambda f: self.call_value(f, args, keywords, node))
        if isinstance(function, Opaque) and isinstance(owner := function.attrs.get("$owner"), Opaque):
            return self.walk.objects.builtin_method(
                owner, function.name.rpartition(".")[2], args, keywords, node
            )
        return self.unknown_call(function, args, keywords, node)

    def _call_bound(
        self, bound: Bound, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        inner = bound.function
        if isinstance(inner, Function):
            if inner.kind == "static":
                return self.call_function(inner, args, keywords, node)
            return self.call_function(inner, [bound.owner, *args], keywords, node)
        if inner is not None:
            return self.call_value(inner, args, keywords, node)
        owner = bound.owner
        if isinstance(owner, Tensor):
            return self.walk.tensor_methods.tensor_method(owner, bound.name, args, keywords, node)
        if isinstance(owner, Opaque):
            return self._opaque_method(owner, bound.name, args, keywords, node)
        return self.walk.objects.builtin_method(owner, bound.name, args, keywords, node)

    def _opaque_method(
        self, owner: Opaque, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if self.walk.tensor_methods.looks_like_tensor(owner, name):
            return self.walk.tensor_methods.tensor_method(owner.as_tensor(), name, args, keywords, node)
        return self.walk.objects.builtin_method(owner, name, args, keywords, node)

    def call_function(
        self,
        function: Function,
        args: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        block: Callable[[Value], None] | None = None,
    ) -> Value:
        """`block`: what a context manager's `with` runs where the function yields."""
        key = id(function.node)
        if function.wrappers and (other := self.walk.definitions.wrapped(function)) is not None:
            return self.call_value(other, args, keywords, node)
        if function.kind == "context" and block is None:
            manager = Instance(None, "manager")
            manager.attrs = {"function": function, "args": Seq(list(args)), "keywords": Dict(dict(keywords))}
            return manager
        if block is None and self.walk.generators.yields(function):
            return self.walk.generators.make(function, args, keywords)
        if self.walk.active.count(key) > 1:
            return unknown()  # it calls itself: what it does to its arguments is being found out just now
        if len(self.walk.frames) > self.walk.deepest or self.walk.left < 200:
            return self.unknown_call(None, args, keywords, node)
        self.walk.visited.add(key)
        self.walk.modes.setdefault(key, set()).add(self.walk.grad_mode)
        env: dict[str, Value] = {}
        frame = Frame(function.module, env, function.env or ())
        frame.function, frame.cls, frame.block = function, function.cls, block
        frame.call = self.walk.at(node)
        if not function.module.declared:
            self.walk.definitions.declare(function.module)
        self.bind_parameters(function, args, keywords, env)
        path, statement, mode = self.walk.path, self.walk.statement, self.walk.grad_mode
        inference = self.walk.inference
        if function.grad_mode is not None:
            self.walk.grad_mode = function.grad_mode
            self.walk.inference = function.inference or (inference and not function.grad_mode)
        self.walk.frames.append(frame)
        self.walk.active.append(key)
        try:
            body = function.node.body
            if isinstance(body, list):
                status = self.walk.run_block(body)
                if not status:
                    frame.returns.append((self.walk.path, NONE))
                elif status == "raise" and not frame.returns and not is_abstract(body):
                    self.walk.raised = block is None
            else:
                frame.returns.append((self.walk.path, self.walk.eval(body)))
        finally:
            self.walk.frames.pop()
            self.walk.active.pop()
            self.walk.path, self.walk.statement = path, statement
            if function.grad_mode is not None:
                self.walk.grad_mode, self.walk.inference = mode, inference
        depth = len(path)
        values = [(p[depth:], v) for p, v in frame.returns]
        told = [o for o in values if not (isinstance(o[1], Const) and o[1].value is None)]
        return self.walk.either(values) if values and told else NONE

    def bind_parameters(
        self, function: Function, args: list[Value], keywords: dict[str, Value], env: dict[str, Value]
    ) -> None:
        spec: ast.arguments = function.node.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        env.update(zip(names, args, strict=False))
        left = dict(keywords)
        for name in (*names[len(args) :], *(a.arg for a in spec.kwonlyargs)):
            if name in left:
                env[name] = left.pop(name)
        defaults = list(zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True))
        defaults += [
            (a.arg, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None
        ]
        for name, default in defaults:
            if name not in env:
                env[name] = self._default(function, default)
        for name in (*names, *(a.arg for a in spec.kwonlyargs)):
            if name not in env:
                env[name] = unknown(name)
        if spec.vararg is not None:
            env[spec.vararg.arg] = Seq(list(args[len(names) :]), "tuple")
        if spec.kwarg is not None:
            env[spec.kwarg.arg] = Dict(dict(left))

    def _default(self, function: Function, default: ast.expr) -> Value:
        if isinstance(default, ast.Constant):
            return NONE if default.value is None else Const(default.value)
        self.walk.frames.append(Frame(function.module, function.module.env))
        try:
            return self.walk.eval(default)
        finally:
            self.walk.frames.pop()

    def unknown_call(
        self, function: Value | None, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """Somebody else's code: its result may depend on every tensor it was given."""
        found = [pair for value in (*args, *keywords.values()) for pair in self.walk.tensors_in(value)]
        known = [pair for pair in found if not (pair[1].opaque and pair[1].node is None)]
        owner = function if isinstance(function, Opaque) else None
        if not known and owner is None:
            return unknown()
        result = self.walk.tensors.fresh(node)
        result.opaque = True
        result.storages[0].kind = "opaque"
        if self.walk.grad_mode is not False:
            parts = list(known)
            if owner is not None and found:
                parts.append(((), self.parameters_of_opaque(owner)))
            if not parts:
                return unknown()
            made = self.walk.tensors.record("call", parts, node)
            self.walk.tensors.holds(made)
            made.sure = False
            result.node, result.leaf, result.grad = made, False, MAYBE
            if owner is not None and found:
                weights = self.parameters_of_opaque(owner)
                self.walk.tensors.save((), weights, made, node, owner.name or "the model", "weight", False)
        return result

    def parameters_of_opaque(self, owner: Opaque) -> Tensor:
        there = owner.attrs.get("$parameters")
        if not isinstance(there, Tensor):
            there = Tensor((Storage(f"{owner.name}.parameters()", "param"),), MAYBE)
            there.name, there.param = f"{owner.name}'s parameters", True
            self.walk.models.append(owner)
            owner.attrs["$parameters"] = there
        return there
