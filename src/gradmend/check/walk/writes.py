"""Writes: in-place ops and assignments to parts, what they change, and those that PyTorch refuses on the spot."""

from __future__ import annotations

import ast
from typing import Any

from gradmend.check import table, words
from gradmend.check.findings import Place
from gradmend.check.fixes import clone_first, no_grad_around, out_of_place
from gradmend.check.ledger import Write, compatible
from gradmend.check.values import (
    MAYBE,
    NO,
    YES,
    Const,
    Dict,
    Instance,
    Node,
    Opaque,
    Path,
    Seq,
    Storage,
    Tensor,
    Value,
)
from gradmend.check.walk.expressions import BINARY, SYMBOL
from gradmend.check.walk.tensors import Tensors

_IN_PLACE_SLOTS = frozenset({"self", "input"})


class Writes(Tensors):
    # --- writes

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
    ) -> Value:
        """An in-place op; returns what it was given, as the op does."""
        for path, tensor in self.tensors(value, deep=1):
            with self.on(path):
                self._write_one(tensor, op, site, slots or {}, shown or op, part, flag, how, name)
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
    ) -> None:
        found = {slot: self.tensors(v) for slot, v in slots.items()}
        others = [pair for pairs in found.values() for pair in pairs]
        quiet = how or ({".data": "data", "numpy": "numpy"}.get(tensor.quiet) or "loud")
        if quiet == "loud":
            self.refusals(tensor, op, site, others, shown)
        elif quiet in ("data", "numpy") and not self.healed:
            self.live_edit(tensor, op, site, slots, shown, quiet)
        if tensor.gradient:
            self.told(
                words.refused(
                    "GM207",
                    self.at(site),
                    f"{shown} changes the gradient that the hook was given, which others share",
                    "warning",
                )
            )
        for hold in self.holds:
            if not hold.dirty and quiet != "collective" and any(id(s) in hold.given for s in tensor.storages):
                hold.wrote.append((self.at(site), shown, name or target_name(site) or tensor.name))
        grad = self.strongest([((), tensor), *others]) if quiet == "loud" else NO
        node: Node | None = None
        if grad:
            if tensor.opaque and not any(not t.opaque for _, t in others):
                grad = min(grad, MAYBE)
            old = self.node_of(tensor)
            node = self.record(shown, others, site)
            node.parents = [*([old] if old is not None else []), *node.parents]
            node.passes = old is not None
            node.sure = grad == YES
            info = table.op(op) or table.op(op.rstrip("_"))
            if info is not None:
                self.keep(
                    info,
                    node,
                    site,
                    {"self": [((), tensor)], "input": [((), tensor)], **found},
                    None,
                    shown,
                    _IN_PLACE_SLOTS | {"result"},
                )
        self._enter(tensor, shown, site, quiet, part or tensor.base is not None, flag, name)
        if node is not None:
            info = table.op(op) or table.op(op.rstrip("_"))
            self.advance(tensor, node, grad)
            if info is not None and info.keeps_result and self.strongest([((), tensor)]):
                strength = grad == YES
                node.keeps = True
                self.save((), tensor, node, site, shown, "result", strength)

    def advance(self, tensor: Tensor, node: Node, grad: int) -> None:
        """The tensor, and what it is a view of, now come from this node."""
        tensor.node, tensor.leaf = node, False
        tensor.grad = max(tensor.grad, grad)
        tensor.age += 1
        base = tensor.base
        while base is not None:
            old = self.node_of(base)
            up = Node(node.op, [*([old] if old is not None else []), node], node.place, self.path)
            up.passes, up.sure = old is not None, node.sure
            base.node, base.leaf = up, False
            base.grad = max(base.grad, grad)
            base.age += 1
            tensor.base_age = base.age
            tensor, base = base, base.base

    def _enter(
        self, tensor: Tensor, shown: str, site: ast.AST, how: str, part: bool, flag: bool, name: str
    ) -> None:
        tick = self.ledger.now()
        for storage in tensor.storages:
            if not storage.saves:
                continue
            fix = None
            # Under no_grad a clone would cut the gradient: there is no such fix.
            if (
                how == "loud"
                and self.grad_mode
                and self.statement is not None
                and not flag
                and not shown.endswith("step")
            ):
                target = _plain_target(self.statement)
                if target is not None:
                    safe = not storage.shared and not tensor.opaque and tensor.base is None
                    fix = clone_first(self.statement, target, self.at(self.statement), safe)
            elif flag:
                fix = out_of_place(site)
            self.ledger.write(
                storage,
                Write(
                    self.at(site),
                    shown,
                    how,
                    name or target_name(site) or tensor.name,
                    tick,
                    self.path,
                    not tensor.uncertain,
                    part,
                    flag,
                    fix,
                ),
            )

    def refusals(
        self, tensor: Tensor, op: str, site: ast.AST, others: list[tuple[Path, Tensor]], shown: str
    ) -> None:
        """Writes that PyTorch refuses on the spot."""
        if self.grad_mode is not True or self.healed:
            return
        grad = self.grad_of(tensor)
        others_grad = max((self.grad_of(t) for _, t in others), default=NO)
        root = tensor
        doubt = tensor.uncertain
        while root.base is not None:
            root = root.base
            doubt = doubt or root.uncertain
        if doubt:
            return
        place = self.at(site)
        name = f"`{target_name(site) or tensor.name}`" if target_name(site) or tensor.name else "it"
        if op == "detach_":
            if tensor.base is not None and grad == YES:
                self.told(
                    words.refused("GM126", place, f"detach_() on {name}, a view: PyTorch refuses it", "error")
                )
            return
        if (
            root.leaf and root.grad == YES and not root.opaque and not root.uncertain and root.node is None
        ) or _leaf_node(root):
            of = "a view of a leaf" if tensor.base is not None else "a leaf"
            self.told(
                words.refused(
                    "GM121",
                    place,
                    f"{shown} changes {name}, {of} that requires grad, in grad mode: PyTorch refuses it",
                    "error",
                    (
                        (("the leaf is made here", root.origin),)
                        if root.origin is not None and root.origin != place
                        else ()
                    ),
                    no_grad_around(self.statement, self.at(self.statement))
                    if self.statement is not None
                    else None,
                )
            )
        elif tensor.many and max(grad, others_grad) == YES:
            self.told(
                words.refused(
                    "GM122",
                    place,
                    f"{shown} changes {name}, one of several views that one call returned: PyTorch refuses it",
                    "error" if grad == YES and not tensor.uncertain else "warning",
                    ((("the views are made here", tensor.origin),) if tensor.origin is not None else ()),
                )
            )
        elif tensor.view_no_grad and tensor.base is not None:
            self.told(
                words.refused(
                    "GM123",
                    place,
                    f"{shown} changes {name}, a view made under no_grad, in grad mode: PyTorch refuses it",
                    "error",
                )
            )
        elif tensor.expanded and not tensor.opaque and op != "setitem":
            self.told(
                words.refused(
                    "GM124",
                    place,
                    f"{shown} changes {name}, an expanded tensor whose entries share memory: PyTorch refuses it",
                    "warning",
                )
            )
        if tensor.sparse == "values" and grad == YES:
            self.told(
                words.refused(
                    "GM302",
                    place,
                    f"{shown} changes the values of a sparse tensor in place: no gradient sees it",
                    "warning",
                )
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
            and self.grad_mode
        ):
            if _masks_out(op, slots) or op in table.OVERWRITES:
                return
            self.edits[origin.storages[0]] = (self.at(site), shown, self.path)

    edits: dict[Storage, tuple[Place, str, Path]]

    def used_after_edit(self, found: list[tuple[Path, Tensor]]) -> None:
        for _, tensor in found:
            for storage in tensor.storages:
                edit = self.edits.get(storage)
                if (
                    edit is not None
                    and tensor.grad == YES
                    and not tensor.quiet
                    and not tensor.leaf
                    and compatible(edit[2], self.path)
                ):
                    del self.edits[storage]
                    self.told(
                        words.refused(
                            "GM210",
                            edit[0],
                            f"{edit[1]} changes a tensor of the graph behind autograd's back, and a later op computes with it: "
                            "the gradient is that of the value before",
                            "warning",
                        )
                    )

    # --- assignments to parts

    def augment(self, node: ast.AugAssign) -> None:
        value = self.eval(node.value)
        target = node.target
        kind = type(node.op)
        if isinstance(target, ast.Subscript):
            owner = self.eval(target.value)
            for path, option in self.options(owner):
                with self.on(path):
                    self._augment_item(option, target, kind, value, node)
            return
        load: Any = target
        current = self.eval(_loaded(load))
        for path, option in self.options(current):
            with self.on(path):
                new = self._augmented(option, kind, value, node)
                if new is not option:
                    self.bind(target, new)

    def _augment_item(
        self, owner: Value, target: ast.Subscript, kind: type, value: Value, node: ast.AugAssign
    ) -> None:
        if isinstance(owner, Tensor) or (isinstance(owner, Opaque) and owner.tensor is not None):
            _, where = self.index_kind(target.slice)
            tensor = owner.as_tensor() if isinstance(owner, Opaque) else owner
            # y[i] op= v reads and writes y's own memory, whatever the index is.
            if where:
                self.write(
                    tensor,
                    "index_put_",
                    node,
                    {"indices": Seq(where), "values": value},
                    shown=SYMBOL.get(kind, "+="),
                    part=True,
                )
            else:
                basic = self.look(tensor, target, "select")
                self.write(
                    basic,
                    BINARY.get(kind, "add") + "_",
                    node,
                    {"other": value},
                    shown=SYMBOL.get(kind, "+="),
                    part=True,
                )
            return
        if isinstance(owner, Instance) and owner.nn == "ndarray":
            self.write(
                owner.attrs["memory"],
                "setitem",
                node,
                shown=SYMBOL.get(kind, "+="),
                name=target_name(target.value) or "",
            )
            return
        current = self.item(owner, target)
        for path, option in self.options(current):
            with self.on(path):
                new = self._augmented(option, kind, value, node)
                if new is not option:
                    self.set_item(target, new)

    def _augmented(self, current: Value, kind: type, value: Value, node: ast.AugAssign) -> Value:
        """What `current op= value` leaves behind: the same tensor, written, or a new value."""
        if isinstance(current, Tensor) and kind is not ast.MatMult:
            self.write(
                current, BINARY.get(kind, "add") + "_", node, {"other": value}, shown=SYMBOL.get(kind, "+=")
            )
            return current
        if isinstance(current, Opaque):
            if kind is not ast.MatMult and current.tensor is not None:
                self.write(
                    current,
                    BINARY.get(kind, "add") + "_",
                    node,
                    {"other": value},
                    shown=SYMBOL.get(kind, "+="),
                )
                return current
            if isinstance(value, Tensor) and not value.opaque:
                return self.apply(BINARY.get(kind, "add"), node, {"self": current, "other": value})
            return current
        if isinstance(current, Seq):
            if kind is ast.Add:
                # The list itself grows: whoever holds it sees it.
                current.items += self.iterate(value, node.value)[:16]
            return current
        if isinstance(current, Instance) and current.nn == "ndarray":
            self.write(
                current.attrs["memory"],
                "setitem",
                node,
                shown=SYMBOL.get(kind, "+="),
                name=target_name(node.target) or "",
            )
            return current
        if isinstance(current, Const) and isinstance(value, Const):
            from gradmend.check.values import unknown

            return unknown()  # a counter: not worth counting
        return self.apply(BINARY.get(kind, "add"), node, {"self": current, "other": value})

    def set_item(self, target: ast.Subscript, value: Value) -> None:
        owner = self.eval(target.value)
        for path, option in self.options(owner):
            with self.on(path):
                self._set_item(option, target, value)

    def _set_item(self, owner: Value, target: ast.Subscript, value: Value) -> None:
        if (
            isinstance(owner, Tensor)
            and isinstance(value, Const)
            and (value.value is None or isinstance(value.value, str))
        ):
            return  # no tensor takes that: it is a container on this path
        if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
            if isinstance(owner, Opaque):
                self.store(owner.attrs, f"[{target.slice.value!r}]", value)
            if isinstance(owner, (Tensor, Opaque)):
                return  # a key: it is a dictionary
        site = self.statement if isinstance(self.statement, (ast.Assign, ast.AugAssign)) else target
        if isinstance(owner, Tensor) or (
            isinstance(owner, Opaque) and (owner.tensor is not None or _array_like(target.slice))
        ):
            tensor = owner.as_tensor() if isinstance(owner, Opaque) else owner
            basic, where = self.index_kind(target.slice)
            slots: dict[str, Value] = {"src": value}
            if where:
                slots["indices"] = Seq(where)
            name = target_name(target.value) or tensor.name
            self.write(
                tensor,
                "setitem" if basic else "index_put_",
                site,
                slots,
                shown="assignment to a part",
                part=True,
                name=name,
            )
            return
        if isinstance(owner, Instance) and owner.nn == "ndarray":
            self.eval(target.slice) if not isinstance(target.slice, ast.Slice) else None
            self.write(
                owner.attrs["memory"],
                "setitem",
                site,
                shown="the assignment",
                name=target_name(target.value) or "",
            )
            return
        key = self.eval(target.slice) if not isinstance(target.slice, ast.Slice) else None
        if isinstance(owner, Dict):
            if isinstance(key, Const) and isinstance(key.value, (str, int, float, bool, tuple)):
                self.store(owner.items, key.value, value)
            else:
                owner.rest = value
        elif isinstance(owner, Seq):
            if (
                isinstance(key, Const)
                and isinstance(key.value, int)
                and -len(owner.items) <= key.value < len(owner.items)
            ):
                owner.items[key.value] = value
            else:
                owner.rest = value
        elif isinstance(owner, Instance):
            method = self.method_of(owner, "__setitem__")
            if method is not None and key is not None:
                self.call_value(method, [key, value], {}, target)
            elif isinstance(key, Const):
                self.store(owner.attrs, f"[{key.value!r}]", value)
        elif isinstance(owner, Opaque) and isinstance(key, Const):
            self.store(owner.attrs, f"[{key.value!r}]", value)


def _leaf_node(tensor: Tensor) -> bool:
    return (
        tensor.node is not None
        and tensor.node.leaf is tensor
        and tensor.grad == YES
        and not tensor.opaque
        and not tensor.uncertain
        and not tensor.quiet
    )


def _masks_out(op: str, slots: dict[str, Value]) -> bool:
    """Filling with minus infinity before a softmax: its gradient there is zero anyway."""
    for value in slots.values():
        if isinstance(value, Const) and isinstance(value.value, (int, float)) and value.value <= -1e4:
            return True
        if not isinstance(value, (Const, Tensor)) or (isinstance(value, Tensor) and value.opaque):
            return True  # what is filled in is not known
    return False


def _array_like(at: ast.expr) -> bool:
    parts = at.elts if isinstance(at, ast.Tuple) else [at]
    return (
        len(parts) > 1
        or isinstance(parts[0], (ast.Slice, ast.Compare))
        or (isinstance(parts[0], ast.Constant) and parts[0].value is Ellipsis)
    )


def _loaded(target: Any) -> ast.expr:
    """The target of `x += 1`, to be read."""
    return target  # names and attributes are read alike, whatever their context says


def _plain_target(statement: ast.stmt) -> str | None:
    """The local name that a statement writes to: `y += 1`, `y[i] = 0`, `y.relu_()`."""
    if isinstance(statement, ast.AugAssign):
        target: ast.expr = statement.target
    elif (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Subscript)
    ):
        target = statement.targets[0]
    elif (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
    ):
        if not statement.value.func.attr.endswith("_"):
            return None
        target = statement.value.func.value
    else:
        return None
    while isinstance(target, ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else None


def target_name(site: ast.AST) -> str:
    """What the written thing is called: `out`, `self.h`, `x[...]`."""
    node: Any = site
    if isinstance(node, ast.AugAssign):
        node = node.target
    elif isinstance(node, ast.Assign):
        node = node.targets[0]
    elif isinstance(node, ast.Call):
        keyword = next((k.value for k in node.keywords if k.arg == "out"), None)
        if keyword is not None:
            node = keyword
        elif isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
            node = node.func.value
            if isinstance(node, ast.Name) and node.id in ("F", "torch", "functional", "init") and site.args:  # type: ignore[attr-defined]
                node = site.args[0]  # type: ignore[attr-defined]
        elif node.args:
            node = node.args[0]
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
        return ".".join(reversed(parts))
    return ""
