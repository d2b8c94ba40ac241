"""Branches (both arms) and loops (two iterations)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gradmend.check.values import NONE, Alt, Instance, Seq, Value, unknown
from gradmend.check.walk.ending import leaves
from gradmend.check.walk.paths import Change
from gradmend.check.walk.questions import Asked

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

# Two rounds show what the second iteration does to the first; deeper nests are walked once to stay linear.
_ROUNDS = (2, 2, 2, 1)
_MOST_ITEMS = 8
_MOST_ARMS = 12
# Is it known to be taken? What it does. Does it end by leaving the block?
Arm = tuple[Callable[[], bool | None], Callable[[], str], bool]


class Branches:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def table(self) -> dict[type, Callable[[Any], str]]:
        """Which of these takes which kind of syntax."""
        return {
            ast.If: self._if,
            ast.Match: self._match,
            ast.Try: self._try,
            ast.TryStar: self._try,
            ast.For: self._for,
            ast.AsyncFor: self._for,
            ast.While: self._while,
        }

    def _if(self, node: ast.If) -> str:
        arms = _arms(node)
        if len(arms) > _MOST_ARMS:
            truth = self.walk.questions.truth
            return self._chain(
                [
                    (
                        partial(truth, test) if test is not None else _yes,
                        partial(self._arm, test, body),
                        leaves(body),
                    )
                    for test, body in arms
                ]
            )
        known = self.walk.questions.truth(node.test)
        if known is not None:
            return self.walk.run_block(node.body if known else node.orelse)
        asked = self.walk.questions.asked(node.test)
        known = self.walk.questions.answered(asked)
        if known is not None:
            return self.walk.run_block(node.body if known else node.orelse)
        return self.branch(
            asked,
            node.test,
            lambda: self.walk.run_block(node.body),
            lambda: self.walk.run_block(node.orelse),
        )

    def _chain(self, arms: list[Arm]) -> str:
        """A long chain of arms: one question with many answers, so that its length is neither depth nor path."""
        tag = self.walk.ledger.now()
        which, left = ("arm", tag), ("leaves", tag)
        changes: list[tuple[int, list[Change]]] = []
        ends: list[str] = []
        before = self.walk.path
        for i, (known, walk, leaving) in enumerate(arms):
            taken = known()
            if taken is False:
                continue
            self.walk.path = (*before, (left, leaving))
            status, changed = self.walk.arm(which, i, walk)
            self.walk.path = before
            if status:
                ends.append(status)
            else:
                changes.append((i, changed))
            if taken:
                break
        else:
            changes.append((len(arms), []))
        if not changes:
            return "continue" if "continue" in ends else ends[0]
        self.walk.join(which, changes)
        if ends:
            self.walk.path = (*before, (left, False))
        return ""

    def _arm(self, test: ast.expr | None, body: list[ast.stmt]) -> str:
        if test is not None:
            self.walk.questions.narrow(test, True)
        return self.walk.run_block(body)

    def branch(self, asked: Asked, test: ast.expr, then: Callable[[], str], other: Callable[[], str]) -> str:
        def first() -> str:
            self.walk.questions.narrow(test, True)
            return then()

        def second() -> str:
            self.walk.questions.narrow(test, False)
            return other()

        condition, side = asked.condition, asked.side
        one, changes_one, two, changes_two = self.walk.arms(asked, first, second)
        if one and not two:
            self._keep(changes_two)
            self.walk.path = (*self.walk.path, (condition, not side), *asked.if_no)
            return ""
        if two and not one:
            self._keep(changes_one)
            self.walk.path = (*self.walk.path, (condition, side), *asked.if_yes)
            return ""
        self.walk.join(condition, [(side, changes_one), (not side, changes_two)])
        if one and two:
            return one if one == two else "continue" if "continue" in (one, two) else "return"
        return ""

    def _keep(self, changes: list[Change]) -> None:
        for target, key, new, _ in changes:
            if new is not self.walk._GONE:
                self.walk.store(target, key, new)

    def _match(self, node: ast.Match) -> str:
        self.walk.eval(node.subject)
        return self._chain(
            [(partial(_always, case), partial(self._case, case), leaves(case.body)) for case in node.cases]
        )

    def _case(self, case: ast.match_case) -> str:
        for part in ast.walk(case.pattern):
            bound = getattr(part, "name", None)
            if isinstance(bound, str):
                self.walk.statements.bind_name(bound, unknown(bound))
        return self.walk.run_block(case.body)

    def _try(self, node: Any) -> str:
        expected = self.walk.ledger.expected
        self.walk.ledger.expected = expected or any(map(_awaits, node.handlers))
        conditions = [("except", id(handler), self.walk.ledger.now()) for handler in node.handlers]
        # What the body did is behind those who come from a handler only in part: which part, nobody knows.
        back = [c for c, h in zip(conditions, node.handlers, strict=True) if not leaves(h.body)]
        self.walk.path = (*self.walk.path, *((condition, False) for condition in back))
        status = self.walk.run_block(node.body)
        self.walk.path = tuple(pair for pair in self.walk.path if pair[0] not in back)
        self.walk.ledger.expected = expected
        for handler, condition in zip(node.handlers, conditions, strict=True):
            if handler.name:
                self.walk.statements.bind_name(handler.name, unknown(handler.name))
            ended, changes = self.walk.arm(condition, True, partial(self.walk.run_block, handler.body))
            if not ended:
                self.walk.join(condition, [(True, changes), (False, [])])
                status = ""
        if not status and node.orelse:
            status = self.walk.run_block(node.orelse)
        if node.finalbody:
            status = self.walk.run_block(node.finalbody) or status
        return status

    def _for(self, node: Any) -> str:
        source = self.walk.eval(node.iter)
        generator = self.walk.generators.behind(source, node.iter)
        if generator is not None:
            return self._taken(node, generator)
        items = self.walk.iteration.iterate(source, node.iter)
        return self.rounds(node, items, isinstance(source, Seq) and source.kind == "modules")

    def _taken(self, node: Any, generator: Instance) -> str:
        """A loop over a generator: its body runs at each yield."""
        frame, before = self.walk.frame, self.walk.path
        ended: list[str] = []

        def each(item: Value) -> None:
            if not ended:
                self.walk.statements.bind(node.target, item)
                status = self.walk.run_block(node.body)
                self.walk.path = before
                if status in ("break", "return", "raise"):
                    ended.append(status)

        frame.loops += 1
        try:
            self.walk.generators.run(generator, node.iter, each)
        finally:
            frame.loops -= 1
            self.walk.path = before
        return self.walk.run_block(node.orelse) if node.orelse and not ended else ""

    def rounds(self, node: Any, items: list[Value] | None, every: bool = False) -> str:
        frame = self.walk.frame
        most = _ROUNDS[min(frame.loops, len(_ROUNDS) - 1)]
        frame.loops += 1
        before = self.walk.path
        try:
            if items is not None:
                few = len(items) <= _MOST_ITEMS or every
                shown = items if few and frame.loops <= 2 else items[:most]
            else:
                shown = [NONE] * most
            for i, item in enumerate(shown):
                if items is not None:
                    self.walk.statements.bind(node.target, item)
                elif self.walk.questions.truth(node.test) is False:
                    break
                status = self._round(node.body, item)
                self.walk.path = before
                if status in ("return", "raise") and i == 0:
                    return status if items is None and _forever(node) else ""
                if status in ("break", "return", "raise"):
                    return ""
        finally:
            frame.loops -= 1
        return self.walk.run_block(node.orelse) if node.orelse else ""

    def _round(self, body: list[ast.stmt], item: Value) -> str:
        """One turn of a loop. Where the item is there on one arm only, there is no such turn on the others."""
        if not isinstance(item, Alt) or self.walk.present(item) or len(item.options) > 1:
            return self.walk.run_block(body)
        path, others = item.options[0][0], [path[0] for path in item.missing if len(path) == 1]
        if len(path) != 1 or any(condition != path[0][0] for condition, _ in others):
            return self.walk.run_block(body)
        condition, side = path[0]
        status, changes = self.walk.arm(condition, side, lambda: self.walk.run_block(body))
        self.walk.join(condition, [(side, changes), *((other, []) for _, other in others)])
        return "" if status in ("return", "raise") else status

    def _while(self, node: ast.While) -> str:
        return self.rounds(node, None)


def _arms(node: ast.If) -> list[tuple[ast.expr | None, list[ast.stmt]]]:
    """The tests and bodies of an `if` and its `elif`s; None for the test of `else`."""
    arms: list[tuple[ast.expr | None, list[ast.stmt]]] = [(node.test, node.body)]
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        arms.append((node.test, node.body))
    if node.orelse:
        arms.append((None, node.orelse))
    return arms


def _yes() -> bool:
    return True


def _always(case: ast.match_case) -> bool | None:
    """`case _:` takes whatever is left."""
    pattern = case.pattern
    return (isinstance(pattern, ast.MatchAs) and pattern.pattern is None and case.guard is None) or None


def _awaits(handler: ast.ExceptHandler) -> bool:
    """`except RuntimeError`: what PyTorch raises is no surprise, unless it is raised again."""
    again = isinstance(handler.body[-1], ast.Raise)
    return not again and handler.type is not None and "RuntimeError" in ast.unparse(handler.type)


def _forever(node: Any) -> bool:
    return isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and bool(node.test.value)
