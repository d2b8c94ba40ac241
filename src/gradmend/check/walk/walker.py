"""The walk of one file: where it is, on which path, in which grad mode, how much is left; and the parts that do the work."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gradmend.check.findings import Call, Finding, Place, place_of
from gradmend.check.ledger import Ledger, compatible
from gradmend.check.project import Project
from gradmend.check.values import (
    Alt,
    Bound,
    Const,
    Dict,
    Instance,
    Lazy,
    Opaque,
    Path,
    Seq,
    Tensor,
    Value,
    unknown,
)
from gradmend.check.walk.arrays import Arrays
from gradmend.check.walk.attributes import Attributes
from gradmend.check.walk.backward import Backward
from gradmend.check.walk.branches import Branches
from gradmend.check.walk.builtin import Builtins
from gradmend.check.walk.calls import Calls
from gradmend.check.walk.cells import Cells
from gradmend.check.walk.classes import Classes
from gradmend.check.walk.containers import Containers
from gradmend.check.walk.contexts import Contexts
from gradmend.check.walk.definitions import Definitions
from gradmend.check.walk.expressions import Expressions
from gradmend.check.walk.external import External
from gradmend.check.walk.frames import Enough, Frame, Region
from gradmend.check.walk.functional import Functional
from gradmend.check.walk.functions import Functions
from gradmend.check.walk.generators import Generators
from gradmend.check.walk.gradients import Gradients
from gradmend.check.walk.iteration import Iteration
from gradmend.check.walk.layers import Layers
from gradmend.check.walk.module_methods import ModuleMethods
from gradmend.check.walk.modules import Modules
from gradmend.check.walk.names import Names
from gradmend.check.walk.objects import Objects
from gradmend.check.walk.ops import Ops
from gradmend.check.walk.optim import Optim
from gradmend.check.walk.parts import Parts
from gradmend.check.walk.paths import Change, joined, merged, same
from gradmend.check.walk.questions import Asked, Questions
from gradmend.check.walk.refusals import Refusals
from gradmend.check.walk.sparse import Sparse
from gradmend.check.walk.statements import Statements
from gradmend.check.walk.tensor_methods import TensorMethods
from gradmend.check.walk.tensors import Tensors
from gradmend.check.walk.writes import Writes

MOST_DEEP = 12  # calls inside calls
MOST_OPTIONS = 6


class Walker:
    def __init__(self, project: Project, allowance: int = 60_000) -> None:
        self.project = project
        self.ledger = Ledger()
        self.path: Path = ()
        self.grad_mode: bool | None = True
        self.frames: list[Frame] = []
        self.place = Place("", 1, 1, 1, 1)
        self.left = allowance
        self.stopped = False  # the allowance ran out
        self.journals: list[list[tuple[dict, Any, Any]]] = []
        self._lent: list[Any] = []
        self.narrowed: list[tuple[dict, Any, Any]] = []  # by the tests of the arm that runs
        self.visited: set[int] = set()  # id of each FunctionDef that was walked
        self.modes: dict[int, set[bool | None]] = {}  # of each: the grad modes in which it was called
        self.active: list[int] = []  # of those, which are running now
        self.statement: ast.stmt | None = None
        self.edits: dict = {}
        self.holds: list[Any] = []
        self.models: list[Opaque] = []  # called, but not seen
        self.deepest = MOST_DEEP
        self.inference = False  # under inference_mode
        self.patched = False  # by gradmend.sparse.patch()
        self.recomputed: Region | None = None  # inside a checkpointed function
        self.forward_mode = False  # under torch.func.jvp
        self.raised = False  # the call that ran last never returns
        self.unseen = 0  # with blocks of somebody else's that we are in
        self.healed = False  # inside a context that forgives writes to what was saved
        self.statements = Statements(self)
        self.branches = Branches(self)
        self.definitions = Definitions(self)
        self.questions = Questions(self)
        self.names = Names(self)
        self.expressions = Expressions(self)
        self.containers = Containers(self)
        self.iteration = Iteration(self)
        self.tensors = Tensors(self)
        self.writes = Writes(self)
        self.refusals = Refusals(self)
        self.parts = Parts(self)
        self.calls = Calls(self)
        self.classes = Classes(self)
        self.attributes = Attributes(self)
        self.modules = Modules(self)
        self.layers = Layers(self)
        self.module_methods = ModuleMethods(self)
        self.optim = Optim(self)
        self.tensor_methods = TensorMethods(self)
        self.ops = Ops(self)
        self.backward = Backward(self)
        self.functions = Functions(self)
        self.builtin = Builtins(self)
        self.objects = Objects(self)
        self.arrays = Arrays(self)
        self.contexts = Contexts(self)
        self.functional = Functional(self)
        self.external = External(self)
        self.sparse = Sparse(self)
        self.gradients = Gradients(self)
        self.cells = Cells(self)
        self.generators = Generators(self)
        self._statements: dict[type, Callable[[Any], str]] = {
            **self.statements.table(),
            **self.branches.table(),
            **self.definitions.table(),
            **self.contexts.table(),
        }
        self._expressions: dict[type, Callable[[Any], Value]] = {
            **self.names.table(),
            **self.expressions.table(),
            **self.containers.table(),
        }

    def begin(self) -> None:
        """As before the first step, with what was found and what is left of the allowance."""
        self.frames.clear()
        self.active.clear()
        self.journals.clear()
        self.narrowed.clear()
        self._lent.clear()
        self.holds.clear()
        self.path, self.grad_mode, self.statement, self.recomputed = (), True, None, None
        self.healed = self.inference = self.forward_mode = self.patched = False
        self.raised = self.ledger.expected = False
        self.unseen = 0

    def run_block(self, body: list[ast.stmt]) -> str:
        """How it ended: "" at its end, else "return", "raise", "break" or "continue"."""
        for statement in body:
            self.left -= 1
            if self.left < 0:
                self.spend(0)
            self.statement = statement
            do = self._statements.get(type(statement))
            if do is not None:
                status = do(statement)
                if self.raised:
                    self.raised = False
                    return "raise"
                if status:
                    return status
        return ""

    def eval(self, node: ast.expr) -> Value:
        self.left -= 1
        if self.left < 0:
            self.spend(0)
        do = self._expressions.get(type(node))
        return do(node) if do is not None else unknown()

    def do(self, statement: ast.stmt) -> None:
        """One statement, outside of its block."""
        self._statements[type(statement)](statement)

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def spend(self, n: int = 1) -> None:
        self.left -= n
        if self.left < 0:
            raise Enough

    def at(self, node: ast.AST) -> Place:
        """The place of a piece of source in the frame that is running."""
        return place_of(self.frame.module.file, node)

    def via(self) -> Call | None:
        """In an imported file: the call in the checked file that led here."""
        for below, frame in zip(self.frames[-2::-1], self.frames[:0:-1], strict=True):
            if frame.module.main:
                return None
            if below.module.main and frame.call is not None and frame.function is not None:
                return Call(frame.function.name, frame.call)
        return None

    def told(self, finding: Finding) -> None:
        if self.frames and finding.via is None and finding.place.file == self.frame.module.file:
            finding = replace(finding, via=self.via())
        self.ledger.told(finding)

    # --- stores that can be taken back when another arm is walked

    _GONE = object()

    def store(self, target: dict, key: Any, value: Any) -> None:
        if self.journals:
            self.journals[-1].append((target, key, target.get(key, self._GONE)))
        target[key] = value

    def narrow(self, target: dict, key: Any, value: Any) -> None:
        """A store that says no more than the arm's own test: after the branch, the name holds what it held."""
        self.store(target, key, value)
        if self.journals:
            self.narrowed.append((target, key, value))

    def arm(
        self, condition: Any, side: int, walk: Callable[[], str], also: Path = ()
    ) -> tuple[str, list[Change]]:
        """Walk one arm of a branch; its stores are taken back and returned."""
        before = self.path
        self.path = (*before, (condition, side), *also)
        self.journals.append([])
        told, self.narrowed = self.narrowed, []
        try:
            status = walk()
        finally:
            self.path = before
            journal = self.journals.pop()
            same = {(id(target), _key(key)): value for target, key, value in self.narrowed}
            self.narrowed = told
            changed: dict[tuple[int, Any], Change] = {}
            for target, key, _ in journal:
                where, new = (id(target), _key(key)), target.get(key, self._GONE)
                changed[where] = (target, key, new, same.get(where, self) is new)
            for target, key, old in reversed(journal):
                if old is self._GONE:
                    target.pop(key, None)
                else:
                    target[key] = old
        return status, list(changed.values())

    def arms(
        self, asked: Asked, then: Callable[[], str], other: Callable[[], str]
    ) -> tuple[str, list[Change], str, list[Change]]:
        """Both arms of a test: each begins in the grad mode before it; if they end in different ones, nobody knows it."""
        mode = self.grad_mode
        one, first = self.arm(asked.condition, asked.side, then, asked.if_yes)
        left, self.grad_mode = self.grad_mode, mode
        two, second = self.arm(asked.condition, not asked.side, other, asked.if_no)
        if one or two:
            self.grad_mode = left if two and not one else self.grad_mode if one and not two else mode
        elif left is not self.grad_mode:
            self.grad_mode = None
        return one, first, two, second

    def join(self, condition: Any, arms: Sequence[tuple[int, list[Change]]]) -> None:
        """After a branch: each name that an arm changed holds what that arm gave it."""
        touched: dict[tuple[int, Any], tuple[dict, Any, dict[int, Any]]] = {}
        for side, changes in arms:
            for target, key, new, narrowed in changes:
                if not narrowed:
                    touched.setdefault((id(target), _key(key)), (target, key, {}))[2][side] = new
        sides = [side for side, _ in arms]
        for target, key, news in touched.values():
            old = target.get(key, self._GONE)
            found: list[tuple[Path, Any]] = [(((condition, side),), news.get(side, old)) for side in sides]
            options = [
                (path, value) for path, value in found if value is not self._GONE and value is not None
            ]
            missing = [path for path, value in found if value is self._GONE or value is None]
            if not options:
                continue
            if isinstance(options[0][1], list):
                self.store(target, key, joined(options, self.either))
            else:
                self.store(target, key, self.either(options, missing))

    def either(self, options: list[tuple[Path, Value]], missing: list[Path] | None = None) -> Value:
        """One value of several, each with the arms it holds on; nested choices are laid flat.

        `missing`: the arms without any. A tensor, or a method of one, is then there on its own arms only.
        """
        if not missing and all(value is options[0][1] for _, value in options):
            return options[0][1]  # with its own arms, which grow by none
        flat: list[tuple[Path, Value]] = []
        missing = list(missing or ())
        for path, value in options:
            for more, v in value.options if isinstance(value, Alt) else [((), value)]:
                if compatible(path, more):
                    flat.append((merged(path, more), v))
            if isinstance(value, Alt):
                missing += [merged(path, more) for more in value.missing if compatible(path, more)]
        if not flat:
            return unknown()
        first = flat[0][1]
        flat.sort(key=_arms)  # what an arm gave lately comes first
        if missing and isinstance(first, (Tensor, Bound)):
            return Alt(flat[:MOST_OPTIONS], sorted(missing, key=len)[:MOST_OPTIONS])
        if all(same(first, v) for _, v in flat):
            return first
        # An absent value tells less than one that is there.
        if len(flat) > MOST_OPTIONS:
            flat = [o for o in flat if not isinstance(o[1], (Const, Opaque))][:MOST_OPTIONS] or flat[
                :MOST_OPTIONS
            ]
        return Alt(flat)

    def hold(self, seq: Seq, items: list[Value], *rest: Value | None) -> None:
        """Give a list other items, and another rest."""
        self.store(seq.held, "items", items)
        if rest:
            self.store(seq.held, "rest", rest[0])

    def present(self, item: Value) -> bool:
        """Is it there, whatever arms led here?"""
        return not isinstance(item, Alt) or not any(map(self.on_path, item.missing))

    def on_path(self, path: Path) -> bool:
        """May what happened there lie behind us?"""
        return compatible(path, self.path)

    @contextmanager
    def on(self, path: Path) -> Iterator[None]:
        before = self.path
        self.path = merged(before, path)
        new = len(self.path) - len(before)
        self._lent += (condition for condition, _ in self.path[len(before) :])
        try:
            yield
        finally:
            self.path = before
            if new:
                del self._lent[-new:]

    def lent(self, path: Path = ()) -> frozenset:
        """The conditions of the path we are on that come with the values in use, and not from where we stand."""
        if not self._lent and not path:
            return frozenset()
        here = {condition for condition, _ in self.path}
        return frozenset((*self._lent, *(condition for condition, _ in path if condition not in here)))

    def options(self, value: Value) -> list[tuple[Path, Value]]:
        """What it may be on the path we are on."""
        if isinstance(value, Alt):
            return [o for o in value.options if compatible(o[0], self.path)]
        return [((), value)]

    def over(self, value: Value, do: Callable[[Value], Value]) -> Value:
        """Do it with each option, on that option's path."""
        if not isinstance(value, Alt):
            return do(value)
        results: list[tuple[Path, Value]] = []
        for path, option in self.options(value):
            with self.on(path):
                results.append((path, do(option)))
        return self.either(results, value.missing) if results else unknown()

    @contextmanager
    def mode(self, grad: bool | None) -> Iterator[None]:
        before = self.grad_mode
        self.grad_mode = grad
        try:
            yield
        finally:
            self.grad_mode = before

    # --- tensors in values

    def tensors_in(self, value: Value | None, deep: int = 3) -> list[tuple[Path, Tensor]]:
        """Every tensor in a value, containers looked into, with the arms on which it is there."""
        if value is None:
            return []
        if isinstance(value, Tensor):
            return [((), value)]
        if isinstance(value, Opaque):
            return [((), value.as_tensor())]
        if isinstance(value, Alt):
            found: list[tuple[Path, Tensor]] = []
            for path, option in self.options(value):
                found += [
                    (merged(path, p), t) for p, t in self.tensors_in(option, deep) if compatible(path, p)
                ]
            return found
        if deep <= 0:
            return []
        if isinstance(value, Seq):
            items = [*value.items[:16], *([value.rest] if value.rest is not None else [])]
        elif isinstance(value, Dict):
            items = [*list(value.items.values())[:16], *([value.rest] if value.rest is not None else [])]
        elif isinstance(value, Instance) and value.nn in ("dist", "object"):
            items = list(value.attrs.values())[:16]
        else:
            return []
        return [pair for item in items for pair in self.tensors_in(item, deep - 1)]

    def force(self, value: Value) -> Value:
        """A lazy name, found out."""
        if isinstance(value, Lazy):
            return self.names.resolve(value)
        return value


def _arms(option: tuple[Path, Value]) -> int:
    return len(option[0])


def _key(key: Any) -> Any:
    return key if isinstance(key, (str, int)) else id(key)
