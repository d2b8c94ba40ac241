"""Ops on tensors: what they keep and what shares memory with what."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check import table, words
from gradmend.check.findings import Place
from gradmend.check.ledger import Save
from gradmend.check.values import (
    MAYBE,
    NO,
    YES,
    Const,
    Node,
    Number,
    Opaque,
    Path,
    Seq,
    Storage,
    Tensor,
    Value,
    unknown,
)
from gradmend.check.walk.paths import merged

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

# What Python's operators do, to numbers too.
_ARITHMETIC = frozenset("add sub mul div pow floor_divide remainder neg".split())


class Tensors:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def node_of(self, tensor: Tensor) -> Node | None:
        self._torn(tensor)
        node = tensor.history()
        if node is None and tensor.grad and not tensor.quiet:
            node = Node("leaf", [], tensor.origin or self.walk.place, ())
            node.leaf = tensor
            node.sure = tensor.grad == YES
            tensor.node = node
        return node

    def grad_of(self, tensor: Tensor) -> int:
        self._torn(tensor)
        tensor.history()
        return tensor.grad

    def _torn(self, tensor: Tensor) -> None:
        """One of several views of one call, used after its base was written: PyTorch refuses the use."""
        base = tensor.base
        if base is None or not tensor.many or base.many or base.age == tensor.base_age:
            return
        wrote = base.node
        if tensor.grad != YES or wrote is None or tensor.opaque or self.walk.grad_mode is not True:
            return
        if not self.walk.on_path(wrote.path) or self.walk.healed or self.walk.statement is None:
            return
        sure = wrote.sure and not tensor.uncertain and set(wrote.path) <= set(self.walk.path)
        name = f"`{base.name}`" if base.name else "a tensor"
        self.walk.told(
            words.refused(
                "GM122",
                wrote.place,
                f"{wrote.op} changes {name}, of which unbind, split or chunk gave several views: PyTorch refuses to use them "
                "after it",
                "error" if sure else "warning",
                (("one of them is used here", self.walk.at(self.walk.statement)),),
            )
        )

    def strongest(self, found: list[tuple[Path, Tensor]]) -> int:
        """Whether a result that depends on these needs a gradient, in the grad mode we are in."""
        if self.walk.grad_mode is False:
            return NO
        top = max((self.grad_of(t) for _, t in found), default=NO)
        return min(top, MAYBE) if self.walk.grad_mode is None else top

    def apply(self, name: str, site: ast.AST, slots: dict[str, Value], *, shown: str = "") -> Value:
        """One op. `slots` are its arguments by ATen's names."""
        if name in table.CONSTANT:
            return self.fresh(site)
        info = table.op(name)
        found = {slot: self.walk.tensors_in(value) for slot, value in slots.items()}
        everything = [pair for pairs in found.values() for pair in pairs]
        if name not in _ARITHMETIC:
            for _, tensor in everything:
                tensor.guessed = False
        if not everything:
            return Number() if all(isinstance(v, (Const, Number)) for v in slots.values()) else unknown()
        self.walk.gradients.used(everything, site)
        if self.walk.recomputed is not None:
            self._read_again(everything, site)
        if info is not None and info.view and name != "expand_copy":
            first = next(iter(slots.values()))
            return self.view(first, info.view, site, name)
        if all(t.opaque and not t.node for _, t in everything):
            # Perhaps numbers, perhaps tensors: what it gives is as unknown.
            grad = min(self.strongest(everything), MAYBE)
        else:
            grad = self.strongest(everything)
        result = self.fresh(site)
        result.opaque = all(t.opaque for _, t in everything)
        result.guessed = all(t.guessed for _, t in everything)
        if grad == NO or (info is not None and not info.grad):
            return result
        node = self.record(shown or name, everything, site)
        node.sure = grad == YES
        result.node, result.grad, result.leaf = node, grad, False
        if info is not None:
            self.keep(info, node, site, found, result, shown or name)
        else:
            self.holds(node)
            node.keeps = grad == YES
            node.sure = False
        return result

    def _read_again(self, found: list[tuple[Path, Tensor]], site: ast.AST) -> None:
        """A checkpointed function runs again in backward: all that it reads from outside must be as it was."""
        region = self.walk.recomputed
        assert region is not None
        for path, tensor in found:
            if self._recomputed(tensor):
                self.save(path, tensor, region.node, site, "checkpoint", "self", region.node.sure, True)

    def _recomputed(self, tensor: Tensor) -> bool:
        """From outside of the checkpointed function that runs: its ops keep no such tensor, the second run reads it anew."""
        region = self.walk.recomputed
        if region is None or tensor.opaque:
            return False
        return not any(id(s) in region.made for s in tensor.storages)

    def fresh(self, site: ast.AST, grad: int = NO) -> Tensor:
        made = Tensor((Storage(),), grad)
        made.origin = self.walk.at(site)
        made.inference = self.walk.inference
        if self.walk.recomputed is not None:
            self.walk.recomputed.made.add(id(made.storages[0]))
        return made

    def record(self, name: str, found: list[tuple[Path, Tensor]], site: ast.AST) -> Node:
        if self.walk.edits:
            self.walk.writes.used_after_edit(found)
        parents: list[Node] = []
        place = self.walk.at(site)
        for path, tensor in found:
            for member in getattr(tensor, "members", (tensor,)):
                node = self.node_of(member)
                if node is not None and node not in parents[-8:]:
                    parents.append(_by_way_of(path, node, place) if path else node)
        return Node(name, parents, place, self.walk.path)

    def keep(
        self,
        info: table.Op,
        node: Node,
        site: ast.AST,
        found: dict[str, list[tuple[Path, Tensor]]],
        result: Tensor | None,
        shown: str,
        skip: frozenset[str] = frozenset(),
    ) -> None:
        """Enter the Saves of one op: a slot is kept where an input whose gradient reads it needs one."""
        for slot in info.slots:
            strength = self._asked(info, info.keeps.get(slot, ()), slot, found)
            if strength == NO and slot in info.perhaps:
                strength = min(self._asked(info, info.perhaps[slot], slot, found), MAYBE)
            if strength == NO or slot in skip:
                continue
            self.holds(node)
            if slot == "result":
                if result is not None:
                    self.save((), result, node, site, shown, slot, strength == YES)
                continue
            for path, tensor in found.get(slot, ()):
                if not self._recomputed(tensor):
                    self.save(path, tensor, node, site, shown, slot, strength == YES)

    def _asked(
        self,
        info: table.Op,
        readers: tuple[str, ...],
        slot: str,
        found: dict[str, list[tuple[Path, Tensor]]],
    ) -> int:
        """Does one of these inputs need a gradient?"""
        asked = [pair for reader in readers for pair in found.get(reader, ())]
        if slot == "result" and info.name in table.KEEPS_RESULT_WITH:
            asked = [pair for pair in asked if not pair[1].opaque]
            asked = [pair for pairs in found.values() for pair in pairs] if asked else []
        return self.strongest(asked)

    def holds(self, node: Node) -> None:
        """It keeps something, known or not: the second run of a checkpointed function goes on until here."""
        node.keeps = True
        if self.walk.recomputed is not None:
            self.walk.recomputed.kept = self.walk.ledger.now()

    def save(
        self,
        path: Path,
        tensor: Tensor,
        node: Node,
        site: ast.AST,
        op: str,
        slot: str,
        sure: bool,
        unguarded: bool = False,
    ) -> None:
        if self.walk.healed:
            return
        where = self.walk.at(site)
        if tensor.inference and not self.walk.inference and not tensor.uncertain:
            certain = sure and not tensor.opaque
            self.walk.told(words.kept_inference(op, where, tensor, "error" if certain else "warning"))
            return
        mine = merged(self.walk.path, path)
        tick = self.walk.ledger.now()
        region = self.walk.recomputed if op != "checkpoint" else None
        for storage in tensor.storages:
            whole = tensor if tensor.base is None and slot != "weight_t" else None
            leaf = (
                tensor.param
                or (tensor.leaf and tensor.grad == YES)
                or (tensor.base is not None and tensor.base.param)
            )
            self.walk.ledger.save(
                Save(
                    storage,
                    node,
                    where,
                    op,
                    slot,
                    tensor.name,
                    tick,
                    mine,
                    sure and not tensor.uncertain,
                    leaf,
                    whole,
                    unguarded,
                    self.walk.lent(path),
                    region,
                )
            )

    def view(self, value: Value, kind: str, site: ast.AST, name: str = "view") -> Value:
        def one(v: Value) -> Value:
            tensor = v.as_tensor() if isinstance(v, Opaque) else v
            if not isinstance(tensor, Tensor):
                return unknown()
            if kind in ("many", "slices"):
                return Seq([], "tuple", rest=self.look(tensor, site, name, many=kind == "many"))
            return self.look(tensor, site, name)

        return self.walk.over(value, one)

    def look(self, base: Tensor, site: ast.AST, name: str, many: bool = False) -> Tensor:
        made = Tensor(base.storages, NO)
        made.opaque, made.quiet, made.param = base.opaque, base.quiet, False
        made.uncertain, made.gradient, made.sparse = base.uncertain, base.gradient, base.sparse
        made.name, made.turns = base.name, base.turns
        made.origin = self.walk.at(site)
        made.leaf = False
        grad = self.grad_of(base)
        made.base, made.base_age = base, base.age
        made.of_function, made.function_view = base.of_function, base.function_view
        made.inference = base.inference
        if self.walk.grad_mode is False:
            made.view_no_grad = grad == YES or base.view_no_grad
        elif grad:
            parent = self.node_of(base)
            made.grad = grad
            made.node = Node(name, [parent] if parent is not None else [], made.origin, self.walk.path)
            made.node.sure = grad == YES
        if base.turns is not None:
            made.origin = base.origin  # where the .grad was taken
        made.many = many or base.many
        made.expanded = base.expanded or name in ("expand", "expand_as", "broadcast_to")
        return made

    def rows(self, tensor: Tensor) -> Tensor:
        """What a loop over a tensor binds: one of unbind's views."""
        return self.look(tensor, self.walk.statement or ast.Pass(), "unbind", many=True)

    def index(self, owner: Value, at: ast.expr, node: ast.Subscript) -> Value:
        tensor = owner.as_tensor() if isinstance(owner, Opaque) else owner
        assert isinstance(tensor, Tensor)
        basic, where = self.index_kind(at)
        if basic:
            return self.look(tensor, node, "select")
        return self.apply("getitem", node, {"self": tensor, "indices": Seq(where)}, shown="indexing")

    def index_kind(self, at: ast.expr) -> tuple[bool, list[Value]]:
        """Is it basic indexing, which gives a view? And the tensors among the indices."""
        parts = at.elts if isinstance(at, ast.Tuple) else [at]
        where: list[Value] = []
        basic = True
        for part in parts:
            if isinstance(part, ast.Slice):
                continue
            value = self.walk.eval(part)
            if isinstance(value, Tensor) and not (value.opaque and value.node is None):
                where.append(value)
                basic = False
            elif isinstance(value, Seq):
                basic = False
            elif isinstance(value, Opaque) and isinstance(
                part, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
            ):
                # An integer or a tensor of indices: taken for the latter, whose result shares nothing.
                basic = False
        return basic, where

    def comparison(self, node: ast.AST) -> Value:
        return self.fresh(node)


def _by_way_of(path: Path, node: Node, place: Place) -> Node:
    """A node that is behind us only on these arms."""
    made = Node("either", [node], place, path)
    made.sure, made.either = node.sure, True
    return made
