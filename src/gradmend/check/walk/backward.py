"""backward(), torch.autograd, checkpoints and hooks of gradients."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check import words
from gradmend.check.findings import Severity
from gradmend.check.ledger import leading_to
from gradmend.check.values import (
    NO,
    NONE,
    YES,
    Const,
    Group,
    Node,
    Seq,
    Storage,
    Tensor,
    Value,
    is_const,
    unknown,
)
from gradmend.check.walk.frames import Region

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Backward:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def backward(
        self, roots: list[Tensor], node: ast.AST, keywords: dict[str, Value], inputs: Value | None = None
    ) -> None:
        retain = any(
            (isinstance(v := keywords.get(k), Const) and v.value is True)
            or (v is not None and not isinstance(v, Const))
            for k in ("retain_graph", "create_graph")
        )
        explicit = keywords.get("retain_graph")
        if isinstance(explicit, Const) and explicit.value is False:
            retain = False
        nodes: list[Node] = []
        for root in roots:
            top = self.walk.tensors.node_of(root)
            if top is not None:
                nodes.append(top)
            elif (
                root.grad == NO
                and not root.opaque
                and self.walk.grad_mode is not None
                and not root.uncertain
                and not root.attrs
            ):
                self.constant_loss(root, node)
        only = None
        if inputs is not None:
            targets = {id(n) for _, t in self.walk.tensors_in(inputs) for n in self._nodes(t)}
            only = leading_to(nodes, targets) if targets else None
            self._unused(nodes, inputs, keywords, node)
        leaves = self.walk.ledger.backward(
            nodes,
            self.walk.at(node),
            self.walk.path,
            retain=retain,
            only=only,
            via=self.walk.via(),
            lent=self.walk.lent(),
            calls=tuple(frame.call for frame in self.walk.frames),
        )
        if inputs is None:
            create = keywords.get("create_graph")
            live = create is not None and not is_const(create, False)
            self.walk.gradients.arrived(leaves, self.walk.at(node), live)

    def _unused(self, roots: list[Node], inputs: Value, keywords: dict[str, Value], node: ast.AST) -> None:
        """torch.autograd.grad with respect to what the output was not computed from."""
        allowed = [keywords.get(k) for k in ("allow_unused", "materialize_grads")]
        if not roots or any(v is not None and not is_const(v, False) for v in allowed):
            return
        asked = node.args[1] if isinstance(node, ast.Call) and len(node.args) > 1 else None
        if not (isinstance(inputs, Tensor) or isinstance(asked, (ast.List, ast.Tuple))):
            return  # a list made elsewhere: which tensors it holds is not known one by one
        reached: set[Node] = set()
        todo = list(roots)
        while todo:
            one = todo.pop()
            if one in reached:
                continue
            reached.add(one)
            if not one.sure or one.path:
                return  # what is not seen, or not on every path, may lead there
            todo += one.parents
        for path, tensor in self.walk.tensors_in(inputs):
            top = self.walk.tensors.node_of(tensor)
            if (
                top is not None
                and not path
                and top not in reached
                and tensor.grad == YES
                and not (tensor.opaque or tensor.uncertain or isinstance(tensor, Group))
            ):
                name = f"`{tensor.name}`" if tensor.name else "this tensor"
                what = (
                    f"grad with respect to {name}, from which the output was not computed: PyTorch refuses it"
                )
                self.walk.told(words.refused("GM134", self.walk.at(node), what, "error"))
                return

    def _nodes(self, tensor: Tensor) -> list[Node]:
        members = tensor.members if isinstance(tensor, Group) else [tensor]
        return [n for m in members if (n := self.walk.tensors.node_of(m)) is not None]

    def constant_loss(self, root: Tensor, node: ast.AST) -> None:
        severity: Severity = "warning"
        self.walk.told(
            words.refused(
                "GM132",
                self.walk.at(node),
                "backward() of a value that depends on no tensor that requires grad: PyTorch refuses it",
                severity,
                ((("it is made here", root.origin),) if root.origin is not None else ()),
            )
        )

    def gradient(self) -> Tensor:
        """What autograd hands to a hook or to a custom backward."""
        made = Tensor((Storage("grad", "grad"),))
        made.gradient, made.name = True, "grad"
        return made

    def hook(self, function: Value, node: ast.AST) -> None:
        gradient = self.gradient()
        with self.walk.mode(False):
            self.walk.calls.call_value(function, [gradient], {}, node)

    def module_hook(self, function: Value, module: Value, node: ast.AST) -> None:
        """A module's backward hook: it is given tuples of gradients."""
        gradient = self.gradient()
        given = Seq([], "tuple", rest=gradient)
        with self.walk.mode(False):
            self.walk.calls.call_value(function, [module, given, given], {}, node)

    def autograd(self, last: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        if last == "backward" and args:
            self.backward([t for _, t in self.walk.tensors_in(args[0])], node, keywords)
            return NONE
        if last == "grad" and args:
            inputs = args[1] if len(args) > 1 else keywords.get("inputs", unknown())
            roots = [t for _, t in self.walk.tensors_in(args[0])]
            self.backward(roots, node, keywords, inputs)
            create = keywords.get("create_graph")
            live = create is not None and not (isinstance(create, Const) and create.value is False)

            def one(_: Value) -> Value:
                made = self.walk.tensors.fresh(node)
                if live and self.walk.grad_mode is not False:
                    found = [((), t) for t in roots] + self.walk.tensors_in(inputs)
                    made.node = self.walk.tensors.record("grad", found, node)
                    made.grad, made.leaf = max((t.grad for t in roots), default=NO), False
                return made

            if isinstance(inputs, Seq):
                return Seq(
                    [one(v) for v in inputs.items],
                    "tuple",
                    one(inputs.rest) if inputs.rest is not None else None,
                )
            return Seq([one(inputs)], "tuple", one(inputs))
        if last == "Variable" and args:
            wants = keywords.get("requires_grad")
            if isinstance(args[0], Tensor) and isinstance(wants, Const) and wants.value is True:
                made = Tensor(args[0].storages, YES)
                made.origin = self.walk.at(node)
                return made
            return args[0]
        return unknown()

    def checkpoint(self, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        found = [pair for value in args[1:] for pair in self.walk.tensors_in(value)]
        grad = self.walk.tensors.strongest(found)
        # With use_reentrant=False what the function closes over may need a gradient, and its inputs none.
        anew = is_const(keywords.get("use_reentrant"), False) and self.walk.grad_mode is not False
        made = self.walk.tensors.record("checkpoint", found, node)
        made.sure = anew or grad == YES
        if grad or anew:
            for path, tensor in found:
                self.walk.tensors.save(path, tensor, made, node, "checkpoint", "self", made.sure)
        rest = {k: v for k, v in keywords.items() if k not in ("use_reentrant", "preserve_rng_state")}
        before = self.walk.recomputed
        if grad or anew:
            self.walk.recomputed = Region(made, anew)
        try:
            result = self.walk.calls.call_value(args[0], args[1:], rest, node)
        finally:
            self.walk.recomputed = before
        if grad or anew:
            given = [tensor for _, tensor in self.walk.tensors_in(result)]
            made.sure = made.sure and any(tensor.grad == YES for tensor in given)
            for save in made.saves:
                save.sure = save.sure and made.sure
            for tensor in given:
                top = self.walk.tensors.node_of(tensor)
                if top is not None and top.leaf is None:
                    top.parents.append(made)
        return result
