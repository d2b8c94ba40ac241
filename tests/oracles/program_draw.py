"""Drawing programs. Each statement is made from a few bytes, so that hypothesis can drop and shrink them one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from hypothesis import strategies as st
from program_model import Backward, Edit, Functional, Let, Loop, Program, SetItem, Statement, View

T = TypeVar("T")
_MOST = 30.0  # values stay where float64 has digits to spare

UNARY = (
    "torch.sin({a})",
    "{a} * 2.0",
    "{a} * {a}",
    "torch.tanh({a})",
    "{a} ** 3",
    "torch.sigmoid({a})",
    "torch.exp(torch.cos({a}))",
    "torch.sqrt({a} * {a} + 1.0)",
    "torch.relu({a})",
    "torch.zeros_like({a})",
    "{a}.clone(memory_format=torch.contiguous_format)",
    "{a}.cumsum(-1)",
    "{a}.softmax(-1)",
    "{a}.sum(0, keepdim=True) * {a}",
    "{a}.abs().clamp(min=0.3)",
    "{a}.flip(0)",
    "torch.linalg.vector_norm({a})",
    "{a}.detach() * {a}",
)
BINARY = (
    "{a} * {b}",
    "{a} + {b}",
    "{a} / ({b} * {b} + 1.0)",
    "torch.maximum({a}, {b})",
    "torch.where({a} > {b}, {a} * {a}, {b})",
    "torch.lerp({a}, {b}, 0.3)",
    "torch.addcmul({a}, {a}, {b}, value=0.5)",
    "torch.atan2({a}, {b} * {b} + 1.0)",
)
EDITS = (  # the call, and what it means; {b} is of the target's shape, or one number, or broadcasts to it
    (".mul_(2.0)", "{t} * 2.0"),
    (".add_({b})", "{t} + {b}"),
    (".mul_({b})", "{t} * {b}"),
    (".sin_()", "torch.sin({t})"),
    (".tanh_()", "torch.tanh({t})"),
    (".sigmoid_()", "torch.sigmoid({t})"),
    (".fill_(0.25)", "torch.full_like({t}, 0.25)"),
    (".zero_()", "torch.zeros_like({t})"),
    (".copy_({b})", "torch.zeros_like({t}) + {b}"),
    (".pow_(2)", "{t} ** 2"),
    (".relu_()", "torch.relu({t})"),
    (".clamp_(min=-0.5)", "torch.clamp({t}, min=-0.5)"),
    (".neg_()", "-{t}"),
    (".mul_({t})", "{t} * {t}"),
    (".sub_({t} * 0.5)", "{t} - {t} * 0.5"),
    (".masked_fill_({b} > 0, 0.5)", "{t}.masked_fill({b} > 0, 0.5)"),
    (".masked_fill_({t} > 0, 0.5)", "{t}.masked_fill({t} > 0, 0.5)"),
    (".addcmul_({b}, {b}, value=0.5)", "torch.addcmul({t}, {b}, {b}, value=0.5)"),
    (".lerp_(torch.cos({t}), 0.3)", "torch.lerp({t}, torch.cos({t}), 0.3)"),
    (".exp_()", "torch.exp({t})"),
    (".cumsum_(-1)", "{t}.cumsum(-1)"),
    (".add_(0)", "{t} + 0"),
    (".tril_()", "torch.tril({t})"),
)
INDEXED = (  # {d}: a dimension of n places; {k}: a place in it; src as many places as the index
    (".index_fill_({d}, torch.tensor([{k}]), 0.5)", "{t}.index_fill({d}, torch.tensor([{k}]), 0.5)"),
    (
        ".index_add_({d}, torch.tensor([{k}, 0, {k}]), torch.sin({t}).index_select({d}, torch.tensor([0, {k}, 0])))",
        "{t}.index_add({d}, torch.tensor([{k}, 0, {k}]), torch.sin({t}).index_select({d}, torch.tensor([0, {k}, 0])))",
    ),
    (
        ".index_copy_({d}, torch.tensor([{k}]), torch.cos({t}).narrow({d}, 0, 1))",
        "{t}.index_copy({d}, torch.tensor([{k}]), torch.cos({t}).narrow({d}, 0, 1))",
    ),
    (
        ".scatter_({d}, places({t}.shape, {d}, {k}), torch.sin({t}))",
        "{t}.scatter({d}, places({t}.shape, {d}, {k}), torch.sin({t}))",
    ),
    (
        ".scatter_add_({d}, places({t}.shape, {d}, {k}) // 2, {t} * 0.5)",
        "{t}.scatter_add({d}, places({t}.shape, {d}, {k}) // 2, {t} * 0.5)",
    ),
    (
        ".scatter_reduce_({d}, places({t}.shape, {d}, {k}), {t} * 0.5, 'prod')",
        "{t}.scatter_reduce({d}, places({t}.shape, {d}, {k}), {t} * 0.5, 'prod')",
    ),
    (
        ".put_(torch.tensor([{k}, 0]), torch.stack([{t}.sum(), {t}.sum()]), accumulate=True)",
        "torch.put({t}, torch.tensor([{k}, 0]), torch.stack([{t}.sum(), {t}.sum()]), accumulate=True)",
    ),
    (
        ".index_put_((torch.tensor([{k}, 0, {k}]) % {t}.shape[0],), torch.tensor(0.5, dtype=torch.float64), accumulate=True)",
        "{t}.index_put((torch.tensor([{k}, 0, {k}]) % {t}.shape[0],), torch.tensor(0.5, dtype=torch.float64), accumulate=True)",
    ),
    (
        ".masked_scatter_({t} > 0, torch.sin({t}))",
        "{t}.masked_scatter({t} > 0, torch.sin({t}))",
    ),
)
VIEWS = (
    "[1:]",
    "[0]",
    "[::2]",
    "[..., 0]",
    ".transpose(0, -1)",
    "[:-1]",
    ".unsqueeze(0)",
    "[..., 1:]",
    "[:, None]",
)
VIEWS_BY_SHAPE = (".expand(2, *{shape})", ".diagonal()", ".view(-1)", ".unfold(0, 2, 1)")
KEYS = ("0", "1:", "::2", "..., 0", "-1", "..., 1:", "[0]", "..., [0]", "i % {n}", "(i + 1) % {n}", "None, 0")
QUIET = (".data", "no_grad", ".detach()")


class Dice:
    """Choices out of bytes, the first choice being the simplest."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, n: int) -> int:
        value = self._data[self._at % len(self._data)] % n
        self._at += 1
        return value

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]


class Drawer:
    """Makes statements that PyTorch accepts in forward, by acting out the program as it grows."""

    def __init__(self, leaves: Sequence[tuple[int, ...]], flavour: str) -> None:
        self.meaning = Functional(leaves)
        self.meaning.silent = True
        self.flavour = flavour
        self.contiguous = set(self.meaning.places)
        self._count = 0

    def statement(self, dice: Dice, *, looped: bool = False) -> Statement | None:
        weights = {"mixed": "LLVEEESSIBG", "loops": "LVESSI", "quiet": "LLVEEESSI", "backwards": "LLVEESIBBG"}
        kind = dice.pick(weights[self.flavour])
        makers: dict[str, Callable[[Dice], Statement | None]] = {
            "L": self._let,
            "V": self._view,
            "E": self._edit,
            "I": self._indexed,
            "S": self._setitem,
            "B": self._backward,
            "G": self._grad,
        }
        return self._tried(makers[kind](dice))

    def loop(self, pieces: Sequence[bytes], times: int) -> Statement | None:
        before = self.meaning
        body = tuple(s for piece in pieces if (s := self.statement(Dice(piece), looped=True)) is not None)
        after = self.meaning
        self.meaning = before.copy()
        found = self._tried(Loop(times, body)) if body else None
        if found is None:
            self.meaning = before if body else after
        return found

    def _tried(self, statement: Statement | None) -> Statement | None:
        if statement is None:
            return None
        trial = self.meaning.copy()
        try:
            trial.do(statement)
        except (RuntimeError, IndexError, ValueError, TypeError):
            return None  # shapes that do not fit
        for value in trial.memory:
            if value.numel() and not bool((value.detach().abs() < _MOST).all()):
                return None
        if any(value.numel() == 0 for _, value in trial.places.values()):
            return None
        self.meaning = trial
        return statement

    # ------------------------------------------------------------------ kinds

    def _names(self) -> list[str]:
        return list(self.meaning.places)[::-1]

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.meaning.places[name][1].shape)

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _let(self, dice: Dice) -> Statement | None:
        names = self._names()
        a = dice.pick(names)
        if dice.below(2):
            fitting = [n for n in names if _broadcasts(self._shape(n), self._shape(a))]
            expression = dice.pick(BINARY).format(a=a, b=dice.pick(fitting))
        else:
            expression = dice.pick(UNARY).format(a=a)
        name = self._fresh()
        if "contiguous_format" in expression:
            self.contiguous.add(name)
        return Let(name, expression)

    def _view(self, dice: Dice) -> Statement | None:
        of = dice.pick(self._names())
        how = dice.pick((*VIEWS, *VIEWS_BY_SHAPE)).format(shape=self._shape(of))
        if how == ".view(-1)" and of not in self.contiguous:
            return None
        return View(self._fresh(), of, how)

    def _target(self, dice: Dice) -> tuple[str, str] | None:
        """Something to write to, and how: a leaf only behind autograd's back, an expanded view never."""
        names = [n for n in self._names() if self._writable(n)]
        if not names:
            return None
        target = dice.pick(names)
        is_leaf = self.meaning.places[target][0] < len(self.meaning.leaves)
        quiet = ""
        if self.flavour == "quiet" and dice.below(2):
            quiet = dice.pick(QUIET)
        if is_leaf and not quiet:
            quiet = "no_grad" if self.flavour == "quiet" else ""
            if not quiet:
                return None
        return target, quiet

    def _writable(self, name: str) -> bool:
        at = self.meaning.places[name][1]
        return at.numel() == at.unique().numel()

    def _apart(self, target: str, operand: str) -> str:
        """An operand that shares the target's memory goes in as a new value: PyTorch refuses overlaps."""
        same = self.meaning.places[target][0] == self.meaning.places[operand][0]
        return f"torch.cos({operand})" if same else operand

    def _edit(self, dice: Dice) -> Statement | None:
        found = self._target(dice)
        if found is None:
            return None
        target, quiet = found
        call, means = dice.pick(EDITS)
        shape = self._shape(target)
        fitting = [n for n in self._names() if _fits(self._shape(n), shape)]
        b = self._apart(target, dice.pick(fitting))
        if quiet == "no_grad" and dice.below(3) == 2 and self._shape(fitting[0]) == shape:
            b = self._apart(target, fitting[0])
            return Edit(target, f"torch.mul({b}, 2.0, out={target})", f"{b} * 2.0", quiet)
        return Edit(target, call.format(t=target, b=b), means.format(t=target, b=b), quiet)

    def _indexed(self, dice: Dice) -> Statement | None:
        found = self._target(dice)
        if found is None or not self._shape(found[0]):
            return None
        target, quiet = found
        call, means = dice.pick(INDEXED)
        shape = self._shape(target)
        dim = dice.below(len(shape))
        words = {"t": target, "d": dim, "k": dice.below(shape[dim])}
        return Edit(target, call.format(**words), means.format(**words), quiet)

    def _setitem(self, dice: Dice) -> Statement | None:
        found = self._target(dice)
        if found is None or not self._shape(found[0]):
            return None
        target, quiet = found
        shape = self._shape(target)
        masks = [f"{n} > 0" for n in self._names() if self._shape(n) == shape]
        key = dice.pick((*KEYS, *masks)).format(n=shape[0])
        sign = dice.pick(("", "*", "+"))
        names = self._names()
        values = ["0.5"]
        for n in names[:4]:
            one = self._apart(target, n)
            values += [f"{one}", f"torch.sin({n})", f"{n}.sum()", f"torch.tanh({n}[i % 2])"]
        return SetItem(target, key, sign, dice.pick(values), quiet)

    def _backward(self, dice: Dice) -> Statement | None:
        names = self._names()
        return Backward((dice.pick(names), dice.pick(names)))

    def _grad(self, dice: Dice) -> Statement | None:
        x = dice.pick(list(self.meaning.leaves))
        return Let(self._fresh(), f"grad_of(total({dice.pick(self._names())}), {x!r})")


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        torch.broadcast_shapes(a, b)
    except RuntimeError:
        return False
    return True


def _fits(a: tuple[int, ...], into: tuple[int, ...]) -> bool:
    try:
        return tuple(torch.broadcast_shapes(a, into)) == into
    except RuntimeError:
        return False


SHAPES = (((3,),), ((2, 3),), ((3, 3), (3,)), ((3, 2), (2,)), ((4,), (4,)), ((2, 3, 2),))
_piece = st.binary(min_size=9, max_size=9)


def programs(flavour: str) -> st.SearchStrategy[Program]:
    block = _piece.map(lambda b: [b]) if flavour != "loops" else st.lists(_piece, min_size=1, max_size=4)
    return st.builds(
        lambda shape, first, blocks, last: build(flavour, SHAPES[shape], first, blocks, last),
        st.integers(0, len(SHAPES) - 1),
        _piece,
        st.lists(block, min_size=2, max_size=11 if flavour != "loops" else 5),
        _piece,
    )


def build(
    flavour: str, leaves: tuple[tuple[int, ...], ...], first: bytes, blocks: list[list[bytes]], last: bytes
) -> Program:
    drawer = Drawer(leaves, flavour)
    start: list[Statement | None] = [
        drawer._tried(Let(drawer._fresh(), Dice(first).pick(UNARY[:6]).format(a="x0")))
    ]
    for block in blocks:
        if len(block) > 1:
            start.append(drawer.loop(block, 2 + block[0][0] % 3))
        else:
            start.append(drawer.statement(Dice(block[0])))
    names = drawer._names()
    chosen = [names[b % len(names)] for b in last[:3]]
    end = Backward(tuple(dict.fromkeys([names[0], *chosen])))
    return Program(leaves, (*(s for s in start if s is not None), end))
