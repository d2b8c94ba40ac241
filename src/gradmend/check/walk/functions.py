"""Custom autograd Functions and their ctx."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from gradmend.check import words
from gradmend.check.findings import Place
from gradmend.check.values import (
    NONE,
    YES,
    Alt,
    Class,
    Function,
    Instance,
    Node,
    Opaque,
    Seq,
    Tensor,
    Value,
    unknown,
)

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Functions:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def apply_function(
        self, cls: Class, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """MyFunction.apply(...): forward runs without grad mode; what it gives to ctx is kept by one node."""
        forward = self.walk.classes.find(cls, "forward")
        if not isinstance(forward, Function):
            return self.walk.calls.unknown_call(None, args, keywords, node)
        found = [pair for value in args for pair in self.walk.tensors_in(value)]
        grad = self.walk.tensors.strongest(found)
        made = self.walk.tensors.record(cls.name, found, node)
        made.sure = grad == YES
        ctx = Instance(None, "ctx")
        ctx.attrs["$node"] = _Hold(made, grad, {id(s) for _, t in found for s in t.storages}, found, cls.name)
        setup = self.walk.classes.find(cls, "setup_context")
        hold = ctx.attrs["$node"]
        assert isinstance(hold, _Hold)
        self.walk.holds.append(hold)
        with self.walk.mode(False):
            if isinstance(setup, Function):
                result = self.walk.calls.call_function(forward, list(args), keywords, node)
                self.walk.calls.call_function(setup, [ctx, Seq(list(args), "tuple"), result], {}, node)
            else:
                result = self.walk.calls.call_function(forward, [ctx, *args], keywords, node)
        self.walk.holds.pop()
        if grad and hold.dirty and not isinstance(result, Opaque):
            self._returned(hold, result, node)
        if not hold.dirty and grad:
            for where, shown, name in hold.wrote[:1]:
                self.walk.told(
                    words.refused(
                        "GM206",
                        where,
                        f"{shown} changes `{name}`, an input of {cls.name}, and forward never calls ctx.mark_dirty",
                        "warning",
                    )
                )
        if grad:
            self._gradients_of(cls, hold, ctx, node)
        return self._outputs(result, hold, node) if grad else result

    def _gradients_of(self, cls: Class, hold: _Hold, made: Instance, node: ast.AST) -> None:
        """Its backward by itself, once: what it does to the gradients that it is given, and to what forward saved.

        It runs before the backward of all that was computed earlier: a write in it meets what those ops keep.
        """
        backward = self.walk.classes.find(cls, "backward")
        if not isinstance(backward, Function) or id(backward.node) in self.walk.visited:
            return
        gradient = self.walk.backward.gradient()
        spec = backward.node.args
        ctx = Instance(None, "ctx")
        ctx.attrs = {n: self._as_kept(v) for n, v in made.attrs.items() if isinstance(v, Tensor)}
        if hold.saved:
            ctx.attrs["saved_tensors"] = Seq([self._as_kept(v) for v in hold.saved], "tuple")
        given = [gradient] * (len(spec.posonlyargs) + len(spec.args) - 1 or int(spec.vararg is not None))
        before = self.walk.ledger.now()
        with self.walk.mode(False):
            self.walk.calls.call_function(backward, [ctx, *given], {}, node)
        for save in hold.node.saves:
            for write in save.storage.writes:
                if write.tick > before:
                    write.within = hold.node

    def _as_kept(self, value: Value) -> Value:
        return self.walk.tensor_methods.behind(value, "") if isinstance(value, Tensor) else value

    def _returned(self, hold: _Hold, result: Value, node: ast.AST) -> None:
        """What is marked dirty must be given back itself."""
        given = [t for _, t in self.walk.tensors_in(result)]
        for place, tensor in hold.marked:
            if tensor not in given:
                self.walk.told(
                    words.refused(
                        "GM120",
                        self.walk.at(node),
                        f"{hold.name} marks `{tensor.name or 'its input'}` as dirty and does not return it: PyTorch refuses it",
                        "error" if hold.grad == YES else "warning",
                        (("it is marked here", place),),
                    )
                )
                return

    def check_function(self, cls: Class) -> None:
        """A custom Function by itself, given tensors of which nothing is known but that they need a gradient."""
        forward = self.walk.classes.find(cls, "forward")
        if not isinstance(forward, Function) or isinstance(
            self.walk.classes.find(cls, "setup_context"), Function
        ):
            return
        args: list[Value] = [unknown(a.arg) for a in forward.node.args.args[1:]]
        self.apply_function(cls, args, {}, forward.node)

    def _outputs(self, result: Value, hold: _Hold, node: ast.AST) -> Value:
        if isinstance(result, Seq):
            return Seq([self._outputs(v, hold, node) for v in result.items], result.kind)
        if isinstance(result, Alt):
            return Alt([(p, self._outputs(v, hold, node)) for p, v in result.options])
        if isinstance(result, Opaque):
            result = result.as_tensor()
        if isinstance(result, Tensor):
            out = Tensor(result.storages, hold.grad, hold.node)
            out.leaf, out.of_function, out.name = False, hold.name, ""
            out.function_view = not hold.dirty and any(id(s) in hold.given for s in result.storages)
            out.opaque = result.opaque and out.function_view
            return out
        return result

    def ctx_method(self, ctx: Instance, name: str, args: list[Value], node: ast.AST) -> Value:
        hold = ctx.attrs.get("$node")
        if name == "save_for_backward" and isinstance(hold, _Hold) and hold.grad:
            hold.saved = list(args)
            for value in args:
                for path, tensor in self.walk.tensors_in(value):
                    self.walk.tensors.save(path, tensor, hold.node, node, hold.name, "self", hold.grad == YES)
            self.walk.tensors.holds(hold.node)
        if name == "mark_dirty" and isinstance(hold, _Hold):
            hold.dirty = True
            for value in args:
                hold.marked += [(self.walk.at(node), t) for p, t in self.walk.tensors_in(value) if not p]
        return NONE

    def hang_on_ctx(self, ctx: Instance, name: str, value: Value, node: ast.AST) -> None:
        hold = ctx.attrs.get("$node")
        if isinstance(hold, _Hold) and hold.grad:
            for path, tensor in self.walk.tensors_in(value):
                if not tensor.opaque:
                    self.walk.tensors.save(
                        path,
                        tensor,
                        hold.node,
                        self.walk.statement or node,
                        hold.name,
                        "ctx",
                        hold.grad == YES,
                        True,
                    )


class _Hold(Value):
    """The node behind a ctx."""

    __slots__ = ("dirty", "found", "given", "grad", "marked", "name", "node", "saved", "wrote")

    def __init__(self, node: Node, grad: int, given: set[int], found: Any, name: str) -> None:
        self.node, self.grad, self.given, self.found, self.name = node, grad, given, found, name
        self.dirty = False
        self.saved: list[Value] = []
        self.marked: list[tuple[Place, Tensor]] = []
        self.wrote: list[tuple[Any, str, str]] = []
