"""A frame of the abstract run, and the end of its allowance."""

from __future__ import annotations

from collections.abc import Callable

from gradmend.check.findings import Place
from gradmend.check.project import Module
from gradmend.check.values import Class, Function, Node, Path, Value


class Enough(Exception):
    """The walk's allowance is used up; what was found stands."""


class Region:
    """A checkpointed function while it is walked: its node, and what memory was made inside."""

    __slots__ = ("anew", "kept", "made", "node")

    def __init__(self, node: Node, anew: bool) -> None:
        self.node = node
        self.anew = anew  # use_reentrant=False: the second run ends once it has all that the first had kept
        self.kept = 0  # when an op inside kept something last
        self.made: set[int] = set()


class Frame:
    __slots__ = (
        "block",
        "call",
        "cls",
        "env",
        "function",
        "loops",
        "module",
        "outer",
        "own",
        "returns",
        "yields",
    )

    def __init__(
        self, module: Module, env: dict[str, Value], outer: tuple[dict[str, Value], ...] = ()
    ) -> None:
        self.module = module
        self.env = env
        self.outer = outer
        self.returns: list[tuple[Path, Value]] = []
        self.yields: list[Value] = []
        self.function: Function | None = None
        self.block: Callable[[Value], None] | None = None  # what runs at its yield
        self.call: Place | None = None  # in the frame below
        self.cls: Class | None = None
        self.loops = 0
        self.own: Value | None = None
