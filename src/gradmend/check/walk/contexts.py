"""with blocks: grad mode, and contexts of the project."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

from gradmend.check.values import (
    NONE,
    Const,
    Dict,
    Function,
    Instance,
    Opaque,
    Seq,
    Tensor,
    Value,
    is_const,
    unknown,
)

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker


class Contexts:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def grad_mode(self, last: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        if args and isinstance(args[0], Function):  # torch.no_grad(f)
            args[0].grad_mode = last == "enable_grad"
            args[0].inference = last == "inference_mode"
            return args[0]
        made = Instance(None, "grad_mode")
        on: bool | None = last == "enable_grad"
        if last in ("set_grad_enabled", "inference_mode") and (args or "mode" in keywords):
            value = args[0] if args else keywords["mode"]
            known = self.walk.questions.truthy(value)
            on = known if last == "set_grad_enabled" or known is None else not known
        made.attrs["mode"] = Const(on)
        made.attrs["inference"] = Const(last == "inference_mode" and on is False)
        if last == "set_grad_enabled":  # it sets the mode when it is made, not when it is entered
            made.attrs["before"] = Const(self.walk.grad_mode)
            self.walk.grad_mode = on
        return made

    def by_hand(self, owner: Instance, name: str) -> Value:
        """`g.__enter__()` and `g.__exit__(...)` of a grad mode; what an ExitStack enters stays until its block ends."""
        if name == "__enter__":
            self.enter(owner)
        elif name == "__exit__":
            self._leave(owner)
        return owner

    def stacked(self, value: Value) -> Value:
        """ExitStack.enter_context(value)."""
        if any(_is_manager(v) for _, v in self.walk.options(value)):
            self.walk.grad_mode = None  # what it does around its yield is not walked here
            return unknown()
        return self.enter(value)[0]

    def _leave(self, owner: Instance) -> None:
        before = owner.attrs.get("before")
        self.walk.grad_mode = before.value if isinstance(before, Const) else None

    def table(self) -> dict[type, Callable[[Any], str]]:
        """Which of these takes which kind of syntax."""
        return {ast.With: self._with, ast.AsyncWith: self._with}

    def _with(self, node: Any, at: int = 0) -> str:
        """The items one inside the other, the body inside the last."""
        if at == len(node.items):
            return self.walk.run_block(node.body)
        item = node.items[at]
        mode, inference = self.walk.grad_mode, self.walk.inference
        value = self.walk.eval(item.context_expr)
        manager = next((v for _, v in self.walk.options(value) if _is_manager(v)), None)
        if manager is not None:
            return self._around(manager, node, at)
        unseen = all(_is_unseen(v) for _, v in self.walk.options(value))
        expects = any(isinstance(v, Instance) and v.nn == "expects" for _, v in self.walk.options(value))
        expected = self.walk.ledger.expected
        inner, leave = self.enter(value)
        if item.optional_vars is not None:
            self.walk.statements.bind(item.optional_vars, inner)
        self.walk.unseen += unseen
        self.walk.ledger.expected = expected or expects
        try:
            status = self._with(node, at + 1)
            return "" if expects and status == "raise" else status
        finally:
            self.walk.unseen -= unseen
            self.walk.ledger.expected = expected
            self.walk.grad_mode, self.walk.inference = mode, inference
            if leave is not None:
                leave()

    def _around(self, manager: Instance, node: Any, at: int) -> str:
        """A function under @contextmanager: the block runs where it yields, with what it has changed until then."""
        outer = self.walk.frame
        ended: list[str] = []

        def block(given: Value) -> None:
            if ended:
                return
            ended.append("")
            self.walk.frames.append(outer)
            try:
                if node.items[at].optional_vars is not None:
                    self.walk.statements.bind(node.items[at].optional_vars, given)
                ended[0] = self._with(node, at + 1)
            finally:
                self.walk.frames.pop()

        function, args, keywords = (manager.attrs[k] for k in ("function", "args", "keywords"))
        assert isinstance(function, Function) and isinstance(args, Seq) and isinstance(keywords, Dict)
        self.walk.calls.call_function(
            function, args.items, keywords.items, node.items[at].context_expr, block
        )
        block(unknown())
        return ended[0]

    def enter(self, value: Value) -> tuple[Value, Any]:
        """What `as` binds, and what to do on leaving."""
        options = self.walk.options(value)
        for _, option in options:
            if isinstance(option, Instance):
                if option.nn == "grad_mode":
                    mode = option.attrs.get("mode")
                    option.attrs.setdefault("before", Const(self.walk.grad_mode))
                    self.walk.grad_mode = (
                        mode.value if isinstance(mode, Const) and len(options) == 1 else None
                    )
                    self.walk.inference = self.walk.inference or is_const(option.attrs.get("inference"), True)
                    return option, partial(self._leave, option)
                if option.nn == "stack":
                    return option, None
                if option.nn == "patched":
                    was, self.walk.patched = self.walk.patched, True
                    return option, partial(setattr, self.walk, "patched", was)
                elif option.nn == "forgive":
                    before = self.walk.healed
                    self.walk.healed = True
                    return option, partial(setattr, self.walk, "healed", before)
                elif option.cls is not None:
                    start, end = (
                        self.walk.classes.method_of(option, "__enter__"),
                        self.walk.classes.method_of(option, "__exit__"),
                    )
                    site = self.walk.statement or ast.Pass()
                    inner = self.walk.calls.call_value(start, [], {}, site) if start is not None else option
                    return inner, partial(
                        self.walk.calls.call_value, end, [NONE, NONE, NONE], {}, site
                    ) if end is not None else None
            if isinstance(option, Seq) and option.kind == "generator":
                return (option.items[0] if option.items else unknown()), None
        return value, None


def _is_unseen(value: Value) -> bool:
    """Somebody else's context: it may turn gradients off."""
    return isinstance(value, Opaque) or (isinstance(value, Tensor) and value.opaque)


def _is_manager(value: Value) -> TypeGuard[Instance]:
    return isinstance(value, Instance) and value.nn == "manager"
