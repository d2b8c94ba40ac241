"""Writes: in-place ops, and what they change."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from gradmend.check import table, words
from gradmend.check.fixes import clone_first, clone_where_read, out_of_place
from gradmend.check.instead import UNKNOWN, instead, reads, target_of
from gradmend.check.ledger import Write, compatible
from gradmend.check.values import MAYBE, NO, YES, Const, Dict, Instance, Node, Path, Seq, Tensor, Value
from gradmend.check.walk.targets import plain_target, target_name

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

_IN_PLACE_SLOTS = frozenset({"self", "input"})


class Writes:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def write(
        self,
        value: Value,
        op: str,
        site: ast.AST,
        slots: dict[str, Value] | None = None,
        *,
        shown: str = "",
        part: bool = False,
        flag: bool = False,
        how: str = "",
        name: str = "",
        by: Instance | None = None,
    ) -> Value:
        """An in-place op; returns what it was given, as the op does. `by`: the module that has the flag."""
        for path, tensor in self.walk.tensors_in(value, deep=1):
            with self.walk.on(path):
                self._write_one(tensor, op, site, slots or {}, shown or op, part, flag, how, name, by)
        return value

    def _write_one(
        self,
        tensor: Tensor,
        op: str,
        site: ast.AST,
        slots: dict[str, Value],
        shown: str,
        part: bool,
        flag: bool,
        how: str,
        name: str,
        by: Instance | None,
    ) -> None:
        found = {slot: self.walk.tensors_in(v) for slot, v in slots.items()}
        others = [pair for pairs in found.values() for pair in pairs]
        quiet = how or ({".data": "data", "numpy": "numpy", "dlpack": "dlpack"}.get(tensor.quiet) or "loud")
        if quiet == "loud":
            if self.walk.refusals.refusals(tensor, op, site, others, shown):
                return  # what comes of it is never seen
        elif quiet in ("data", "numpy") and not self.walk.healed:
            self.live_edit(tensor, op, site, slots, shown, quiet)
        if tensor.gradient:
            self.walk.told(
                words.refused(
                    "GM207",
                    self.walk.at(site),
                    f"{shown} changes the gradient that it was given, which others share",
                    "warning",
                )
            )
        for hold in self.walk.holds:
            if not hold.dirty and quiet != "collective" and any(id(s) in hold.given for s in tensor.storages):
                hold.wrote.append((self.walk.at(site), shown, name or target_name(site) or tensor.name))
        grad = self.walk.tensors.strongest([((), tensor), *others]) if quiet == "loud" else NO
        node: Node | None = None
        if grad:
            if tensor.opaque and not any(not t.opaque for _, t in others):
                grad = min(grad, MAYBE)
            old = self.walk.tensors.node_of(tensor)
            node = self.walk.tensors.record(shown, others, site)
            node.parents = [*([old] if old is not None else []), *node.parents]
            node.passes = old is not None
            node.sure = grad == YES
            info = table.op(op) or table.op(op.rstrip("_"))
            if info is not None:
                self.walk.tensors.keep(
                    info,
                    node,
                    site,
                    {"self": [((), tensor)], "input": [((), tensor)], **found},
                    None,
                    shown,
                    _IN_PLACE_SLOTS | {"result"},
                )
        self._enter(tensor, shown, site, quiet, part or tensor.base is not None, flag, name, by)
        if node is not None:
            info = table.op(op) or table.op(op.rstrip("_"))
            self.advance(tensor, node, grad)
            if info is not None and info.keeps_result and self.walk.tensors.strongest([((), tensor)]):
                self.walk.tensors.holds(node)
                # By a number, a power keeps a copy of what was there, and not its result.
                if info.name not in table.KEEPS_RESULT_WITH or not all(t.guessed for _, t in others):
                    self.walk.tensors.save((), tensor, node, site, shown, "result", grad == YES)

    def advance(self, tensor: Tensor, node: Node, grad: int) -> None:
        """The tensor, and what it is a view of, now come from this node."""
        tensor.node, tensor.leaf = node, False
        tensor.grad = max(tensor.grad, grad)
        tensor.age += 1
        base = tensor.base
        while base is not None:
            old = self.walk.tensors.node_of(base)
            up = Node(node.op, [*([old] if old is not None else []), node], node.place, self.walk.path)
            up.passes, up.sure = old is not None, node.sure
            base.node, base.leaf = up, False
            base.grad = max(base.grad, grad)
            base.age += 1
            tensor.base_age = base.age
            tensor, base = base, base.base

    def _enter(
        self,
        tensor: Tensor,
        shown: str,
        site: ast.AST,
        how: str,
        part: bool,
        flag: bool,
        name: str,
        by: Instance | None = None,
    ) -> None:
        tick = self.walk.ledger.now()
        for storage in tensor.storages:
            if not storage.saves:
                continue
            fix, other, read, elsewhere = None, UNKNOWN, None, False
            statement = self.walk.statement
            # Under no_grad a clone would cut the gradient: there is no such fix.
            if (
                how == "loud"
                and self.walk.grad_mode
                and statement is not None
                and not flag
                and not shown.endswith("step")
            ):
                function = self.walk.frame.function
                held = self._held(statement)
                other = instead(
                    statement,
                    site,
                    function.node if function is not None else self.walk.frame.module.tree,
                    held,
                )
                whole = self.walk.at(statement)
                if held is None and any(whole.holds(save.place) for save in storage.saves):
                    read = clone_where_read(reads(statement))
                target = plain_target(statement) if held is None else ast.unparse(held)
                elsewhere = storage.shared and isinstance(target_of(statement), ast.Name)
                if target is not None and not other.given:  # the caller would keep what was
                    safe = not storage.shared and not tensor.opaque and tensor.base is None
                    fix = clone_first(statement, target, self.walk.at(statement), safe)
            elif flag:
                fix = out_of_place(site)
                if by is not None and by.call is not None and by.site is not None:
                    # An edit belongs to the finding's own file.
                    fix = out_of_place(by.call) if by.site.file == self.walk.at(site).file else None
            self.walk.ledger.write(
                storage,
                Write(
                    self.walk.at(site),
                    shown,
                    how,
                    name or (target_name(site) if by is None else "") or tensor.name,
                    tick,
                    self.walk.path,
                    not tensor.uncertain,
                    part,
                    flag,
                    fix,
                    other,
                    read,
                    made=by.site if by is not None else None,
                    via=self.walk.via(),
                    lent=self.walk.lent(),
                    region=self.walk.recomputed,
                    looped=self.walk.frame.loops > 0,
                    elsewhere=elsewhere,
                ),
            )

    def _held(self, statement: ast.stmt) -> ast.expr | None:
        """The item of a list or dict that is written to: `hs[i]` in `hs[i][0] = 1`. None where a name holds the tensor."""
        node: ast.expr | None = target_of(statement)
        items: list[ast.Subscript] = []
        while isinstance(node, ast.Subscript):
            items.append(node)
            node = node.value
        if not items or not isinstance(node, (ast.Name, ast.Attribute)):
            return None
        if any(isinstance(one, ast.Call) for one in ast.walk(items[0])):
            return None  # what it names may be another item each time
        root = node
        while items and isinstance(self.walk.force(self.walk.eval(node)), (Seq, Dict)):
            node = items.pop()
        return node if node is not root else None

    def detached(self, tensor: Tensor, site: ast.AST) -> None:
        """detach_(): what an op kept of it has lost its place in the graph."""
        for storage in tensor.storages:
            if storage.saves:
                self.walk.ledger.write(
                    storage,
                    Write(
                        self.walk.at(site),
                        "detach_()",
                        "detach",
                        target_name(site) or tensor.name,
                        self.walk.ledger.now(),
                        self.walk.path,
                        not tensor.uncertain,
                        of=tensor,
                        lent=self.walk.lent(),
                        region=self.walk.recomputed,
                    ),
                )

    def live_edit(
        self, tensor: Tensor, op: str, site: ast.AST, slots: dict[str, Value], shown: str, how: str
    ) -> None:
        """An edit of a tensor in the graph behind autograd's back: noted, and told once an op uses the edited value."""
        origin: Any = tensor.edited
        if (
            isinstance(origin, Tensor)
            and origin.grad == YES
            and not origin.leaf
            and not origin.param
            and self.walk.grad_mode
        ):
            if _masks_out(op, slots) or op in table.OVERWRITES:
                return
            self.walk.edits[origin.storages[0]] = (self.walk.at(site), shown, self.walk.path)

    def used_after_edit(self, found: list[tuple[Path, Tensor]]) -> None:
        for _, tensor in found:
            for storage in tensor.storages:
                edit = self.walk.edits.get(storage)
                if (
                    edit is not None
                    and tensor.grad == YES
                    and not tensor.quiet
                    and not tensor.leaf
                    and compatible(edit[2], self.walk.path)
                ):
                    del self.walk.edits[storage]
                    self.walk.told(
                        words.refused(
                            "GM210",
                            edit[0],
                            f"{edit[1]} changes a tensor of the graph behind autograd's back, and a later op computes with it: "
                            "the gradient is that of the value before",
                            "warning",
                        )
                    )


def _masks_out(op: str, slots: dict[str, Value]) -> bool:
    """Filling with minus infinity before a softmax: its gradient there is zero anyway."""
    for value in slots.values():
        if isinstance(value, Const) and isinstance(value.value, (int, float)) and value.value <= -1e4:
            return True
        if not isinstance(value, (Const, Tensor)) or (isinstance(value, Tensor) and value.opaque):
            return True  # what is filled in is not known
    return False
