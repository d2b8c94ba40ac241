"""Ops on tensors: what they keep, what they write, what shares memory with what."""

from __future__ import annotations

import ast
from typing import Any

from gradmend.check import table, words
from gradmend.check.findings import Place
from gradmend.check.fixes import clone_first, no_grad_around, out_of_place
from gradmend.check.ledger import Save, Write, compatible
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
from gradmend.check.walk.core import merged
from gradmend.check.walk.expressions import BINARY, SYMBOL, Expressions

_IN_PLACE_SLOTS = frozenset({"self", "input"})


class Tensors(Expressions):
    healed = False  # inside a context that forgives writes to what was saved
    holds: list[Any]  # the custom Functions whose forward is being walked

    # --- history

    def node_of(self, tensor: Tensor) -> Node | None:
        node = tensor.history()
        if node is None and tensor.grad and not tensor.quiet:
            node = Node("leaf", [], tensor.origin or self.place, ())
            node.leaf = tensor
            node.sure = tensor.grad == YES
            tensor.node = node
        return node

    def grad_of(self, tensor: Tensor) -> int:
        tensor.history()
        return tensor.grad

    def strongest(self, found: list[tuple[Path, Tensor]]) -> int:
        """Whether a result that depends on these needs a gradient, in the grad mode we are in."""
        if self.grad_mode is False:
            return NO
        top = max((self.grad_of(t) for _, t in found), default=NO)
        return min(top, MAYBE) if self.grad_mode is None else top

    # --- out-of-place ops

    def apply(self, name: str, site: ast.AST, slots: dict[str, Value], *, shown: str = "") -> Value:
        """One op. `slots` are its arguments by ATen's names."""
        if name in table.CONSTANT:
            return self.fresh(site)
        info = table.op(name)
        found = {slot: self.tensors(value) for slot, value in slots.items()}
        everything = [pair for pairs in found.values() for pair in pairs]
        if not everything:
            from gradmend.check.values import unknown

            return unknown()
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
        if grad == NO or (info is not None and not info.grad):
            return result
        node = self.record(shown or name, everything, site)
        node.sure = grad == YES
        result.node, result.grad, result.leaf = node, grad, False
        if info is not None:
            self.keep(info, node, site, found, result, shown or name)
        else:
            node.keeps = grad == YES
            node.sure = False
        return result

    def fresh(self, site: ast.AST, grad: int = NO) -> Tensor:
        made = Tensor((Storage(),), grad)
        made.origin = self.at(site)
        return made

    def record(self, name: str, found: list[tuple[Path, Tensor]], site: ast.AST) -> Node:
        if self.edits:
            self.used_after_edit(found)
        parents: list[Node] = []
        for _, tensor in found:
            for member in getattr(tensor, "members", (tensor,)):
                node = self.node_of(member)
                if node is not None and node not in parents[-8:]:
                    parents.append(node)
        return Node(name, parents, self.at(site), self.path)

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
        for slot, readers in info.keeps.items():
            asked = [pair for reader in readers for pair in found.get(reader, ())]
            strength = self.strongest(asked)
            if strength == NO or slot in skip:
                continue
            node.keeps = True
            if slot == "result":
                if result is not None:
                    self.save((), result, node, site, shown, slot, strength == YES)
                continue
            for path, tensor in found.get(slot, ()):
                self.save(path, tensor, node, site, shown, slot, strength == YES)

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
        if self.healed:
            return
        where = self.at(site)
        mine = merged(self.path, path)
        tick = self.ledger.now()
        for storage in tensor.storages:
            whole = tensor if tensor.base is None and slot != "weight_t" else None
            leaf = (
                tensor.param
                or (tensor.leaf and tensor.grad == YES)
                or (tensor.base is not None and tensor.base.param)
            )
            self.ledger.save(
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
                )
            )

    # --- views

    def view(self, value: Value, kind: str, site: ast.AST, name: str = "view") -> Value:
        def one(v: Value) -> Value:
            tensor = v.as_tensor() if isinstance(v, Opaque) else v
            if not isinstance(tensor, Tensor):
                from gradmend.check.values import unknown

                return unknown()
            if kind == "many":
                return Seq([], "tuple", rest=self.look(tensor, site, name, many=True))
            return self.look(tensor, site, name)

        return self.over(value, one)

    def look(self, base: Tensor, site: ast.AST, name: str, many: bool = False) -> Tensor:
        made = Tensor(base.storages, NO)
        made.opaque, made.quiet, made.param = base.opaque, base.quiet, False
        made.uncertain, made.gradient, made.sparse = base.uncertain, base.gradient, base.sparse
        made.name = base.name
        made.origin = self.at(site)
        made.leaf = False
        grad = self.grad_of(base)
        made.base, made.base_age = base, base.age
        made.of_function = base.of_function
        if self.grad_mode is False:
            made.view_no_grad = grad == YES or base.view_no_grad
        elif grad:
            parent = self.node_of(base)
            made.grad = grad
            made.node = Node(name, [parent] if parent is not None else [], made.origin, self.path)
            made.node.sure = grad == YES
        made.many = many or base.many
        made.expanded = base.expanded or name in ("expand", "expand_as", "broadcast_to")
        return made

    def rows(self, tensor: Tensor) -> Tensor:
        """What a loop over a tensor binds: one of unbind's views."""
        return self.look(tensor, self.statement or ast.Pass(), "unbind", many=True)

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
            value = self.eval(part)
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

    def comparison(self, node: ast.AST) -> Value:
        return self.fresh(node)


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
