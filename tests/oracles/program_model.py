"""Small programs that read and write tensors, and what they mean: every write makes a new tensor.

The program itself is source text, run by Python. Its meaning is told by `Functional`: memory is a list of flat values,
a variable is a table of places in one of them, a view is a table made from another. Nothing is ever written in place,
so PyTorch's gradient of it is the gradient of the forward that ran.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Let:
    """`name = expression`, made new."""

    name: str
    expression: str

    def source(self) -> str:
        return f"{self.name} = {self.expression}"


@dataclass(frozen=True)
class View:
    """`name = of[...]`: the same memory."""

    name: str
    of: str
    how: str

    def source(self) -> str:
        return f"{self.name} = {self.of}{self.how}"


@dataclass(frozen=True)
class Edit:
    """`target.mul_(...)`; `meaning` is the same out of place. `quiet` writes are hidden from autograd."""

    target: str
    call: str
    meaning: str
    quiet: str = ""  # "", "no_grad", ".data", ".detach()"

    def source(self) -> str:
        if self.call.startswith("torch."):
            text = self.call
        else:
            text = f"{self.target}{self.quiet if self.quiet != 'no_grad' else ''}{self.call}"
        return f"with torch.no_grad():\n    {text}" if self.quiet == "no_grad" else text


@dataclass(frozen=True)
class SetItem:
    """`target[key] = value`, or with an operator before the sign."""

    target: str
    key: str
    sign: str  # "", "+", "*"
    value: str
    quiet: str = ""

    def source(self) -> str:
        through = self.quiet if self.quiet != "no_grad" else ""
        text = f"{self.target}{through}[{self.key}] {self.sign}= {self.value}"
        return f"with torch.no_grad():\n    {text}" if self.quiet == "no_grad" else text


@dataclass(frozen=True)
class Backward:
    names: tuple[str, ...]

    def source(self) -> str:
        return f"backward(total({', '.join(self.names)}))"


@dataclass(frozen=True)
class Loop:
    times: int
    body: tuple[Statement, ...]

    def source(self) -> str:
        lines = "\n".join(s.source() for s in self.body) or "pass"
        return f"for i in range({self.times}):\n{textwrap.indent(lines, '    ')}"


Statement = Let | View | Edit | SetItem | Backward | Loop


@dataclass(frozen=True)
class Program:
    leaves: tuple[Shape, ...]
    statements: tuple[Statement, ...]

    def source(self) -> str:
        return "\n".join(s.source() for s in self.statements) + "\n"

    def __repr__(self) -> str:
        heads = [f"x{i} = leaf({i}, {shape})" for i, shape in enumerate(self.leaves)]
        return "\n" + textwrap.indent("\n".join([*heads, self.source()]), "    ")


# --------------------------------------------------------------------------- words that programs may use


def leaf(number: int, shape: Shape) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def total(*values: torch.Tensor) -> torch.Tensor:
    """A number that depends on every element in its own way."""
    parts = [(v * torch.cos(torch.arange(1.0, v.numel() + 1)).to(v).reshape(v.shape)).sum() for v in values]
    return torch.stack(parts).sum()


def places(shape: Sequence[int], dim: int, turn: int) -> torch.Tensor:
    """For scatter_: along `dim`, each place once, turned."""
    size = shape[dim]
    line = torch.arange(size).roll(turn)
    return line.reshape([-1 if d == dim else 1 for d in range(len(shape))]).expand(*shape).contiguous()


WORDS: dict[str, Any] = {"torch": torch, "total": total, "places": places}


# --------------------------------------------------------------------------- the program as it is


def run(program: Program) -> dict[str, torch.Tensor]:
    """Run the source; the gradients of the leaves."""
    leaves = {f"x{i}": leaf(i, shape) for i, shape in enumerate(program.leaves)}

    def backward(loss: torch.Tensor) -> None:
        if loss.requires_grad:
            loss.backward(retain_graph=True)
            for t in leaves.values():
                # abs() twice differentiated leaves one, and PyTorch can't add the next gradient to it.
                if t.grad is not None and t.grad._is_zerotensor():
                    t.grad = t.grad.clone()

    words = {**WORDS, **leaves, "i": 0, "backward": backward, "grad_of": _grad_of(leaves)}
    exec(compile(program.source(), "<program>", "exec"), words)
    return {name: torch.zeros_like(t) if t.grad is None else t.grad for name, t in leaves.items()}


def _grad_of(leaves: dict[str, torch.Tensor]) -> Callable[[torch.Tensor, str], torch.Tensor]:
    def grad_of(loss: torch.Tensor, name: str) -> torch.Tensor:
        x = leaves[name]
        if not loss.requires_grad:
            return torch.zeros_like(x)
        found = torch.autograd.grad(loss, x, create_graph=True, allow_unused=True)[0]
        return torch.zeros_like(x) if found is None else found.clone()

    return grad_of


# --------------------------------------------------------------------------- the program as it is meant


class _Unseen(torch.autograd.Function):
    """New values that autograd does not know of: the gradient passes as if nothing had been written."""

    @staticmethod
    def forward(ctx: Any, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return new.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class _Names(dict[str, Any]):
    def __init__(self, meaning: Functional, **more: Any) -> None:
        super().__init__(more)
        self._meaning = meaning

    def __missing__(self, name: str) -> torch.Tensor:
        if name not in self._meaning.places:
            raise KeyError(name)
        return self._meaning.read(name)


class Functional:
    def __init__(self, leaves: Sequence[Shape], values: Sequence[torch.Tensor] | None = None) -> None:
        given = [leaf(i, shape) for i, shape in enumerate(leaves)] if values is None else values
        self.leaves = {f"x{i}": t for i, t in enumerate(given)}
        self.memory: list[torch.Tensor] = []
        self.places: dict[str, tuple[int, torch.Tensor]] = {}
        self.grads = {name: torch.zeros_like(t) for name, t in self.leaves.items()}
        self.losses: list[torch.Tensor] = []
        self.silent = False  # without the backward calls
        self._i = 0
        for name, t in self.leaves.items():
            self._new(name, t)

    def copy(self) -> Functional:
        other: Functional = object.__new__(Functional)
        other.__dict__ = {**self.__dict__}
        other.memory, other.places = list(self.memory), dict(self.places)
        other.grads, other.losses = dict(self.grads), list(self.losses)
        return other

    def read(self, name: str) -> torch.Tensor:
        where, at = self.places[name]
        return self.memory[where][at]

    def evaluate(self, expression: str, **more: Any) -> torch.Tensor:
        words = {**WORDS, "grad_of": _grad_of(self.leaves)}
        value: torch.Tensor = eval(expression, words, _Names(self, i=self._i, **more))
        return value

    def do(self, statement: Statement) -> None:
        match statement:
            case Let(name, expression):
                self._new(name, self.evaluate(expression))
            case View(name, of, how):
                where, at = self.places[of]
                self.places[name] = where, self.evaluate(f"_at{how}", _at=at)
            case Edit(target, _, meaning, quiet):
                where, at = self.places[target]
                self._write(where, at, self.evaluate(meaning), quiet)
            case SetItem(target, key, sign, value, quiet):
                where, whole = self.places[target]
                at, new = (
                    self.evaluate(f"_at[{key}]", _at=whole),
                    torch.as_tensor(self.evaluate(value), dtype=torch.float64),
                )
                if sign:
                    old = self.memory[where][at]
                    new = old + new if sign == "+" else old * new
                self._write(where, at, new, quiet)
            case Backward(names):
                self._backward(self.evaluate(f"total({', '.join(names)})"))
            case Loop(times, body):
                for self._i in range(times):
                    for inner in body:
                        self.do(inner)

    def _new(self, name: str, value: torch.Tensor) -> None:
        self.places[name] = len(self.memory), torch.arange(value.numel()).reshape(value.shape)
        self.memory.append(value.reshape(-1))

    def _write(self, where: int, at: torch.Tensor, value: torch.Tensor, quiet: str) -> None:
        old = self.memory[where]
        new = old.index_put((at.reshape(-1),), value.expand(at.shape).reshape(-1))
        self.memory[where] = _Unseen.apply(old, new.detach()) if quiet else new

    def _backward(self, loss: torch.Tensor) -> None:
        self.losses.append(loss)
        if self.silent or not loss.requires_grad:
            return
        xs = list(self.leaves.values())
        for name, g in zip(
            self.leaves, torch.autograd.grad(loss, xs, retain_graph=True, allow_unused=True), strict=True
        ):
            if g is not None:
                self.grads[name] = self.grads[name] + g


def meant(program: Program) -> dict[str, torch.Tensor]:
    meaning = Functional(program.leaves)
    for statement in program.statements:
        meaning.do(statement)
    return meaning.grads
