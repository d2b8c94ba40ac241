"""What a name may hold: the values of the abstract run.

A Storage is memory; a Tensor looks at one or, where a name stands for several ("each parameter of this model"), at several.
A Node is a step of the autograd graph. Grad says whether a tensor needs a gradient: NO, MAYBE, YES.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradmend.check.findings import Place
    from gradmend.check.ledger import Save, Write
    from gradmend.check.project import Module

NO, MAYBE, YES = 0, 1, 2
Path = tuple[tuple[Any, Any], ...]  # conditions and the arm taken


class Value:
    __slots__ = ()


class Storage:
    __slots__ = ("grad", "has_grad", "kind", "name", "numpy", "saves", "shared", "writes")

    def __init__(self, name: str = "", kind: str = "") -> None:
        self.name = name
        self.kind = kind  # "param", "buffer", "grad", "opaque", ""
        self.saves: list[Save] = []
        self.writes: list[Write] = []
        self.has_grad = False
        self.grad: GradStorage | None = None  # of a leaf: its .grad, once somebody has looked at it
        self.shared = False  # more than one name may reach it
        self.numpy = False


class GradStorage(Storage):
    """The memory of a .grad: `turns` are the backward calls that added to it in place."""

    __slots__ = ("turns",)

    def __init__(self, name: str) -> None:
        super().__init__(name, "grad")
        self.turns: list[tuple[Place, Path]] = []


class Node:
    """One op of the graph. `keeps`: it kept something, so that it can't be gone through twice."""

    __slots__ = (
        "either", "freed", "keeps", "leaf", "op", "parents", "passes", "path", "place", "saves", "sure",
    )  # fmt: skip

    def __init__(self, op: str, parents: list[Node], place: Place, path: Path) -> None:
        self.op = op
        self.parents = parents
        self.place = place
        self.path = path
        self.saves: list[Save] = []
        self.keeps = False
        self.freed: list[tuple[Place, Path, frozenset]] = []  # by which backward calls, on which paths
        self.leaf: Tensor | None = None
        self.either = False  # no op: what is behind it counts on the arms of its path only
        self.passes = False  # an in-place step: where it did not run, its first parent stands
        self.sure = True


class Tensor(Value):
    __slots__ = (
        "age",
        "attrs",
        "base",
        "base_age",
        "bound",
        "edited",
        "expanded",
        "function_view",
        "grad",
        "gradient",
        "guessed",
        "inference",
        "leaf",
        "many",
        "name",
        "node",
        "of_function",
        "opaque",
        "origin",
        "param",
        "quiet",
        "sparse",
        "storages",
        "swapped",
        "turns",
        "uncertain",
        "view_no_grad",
    )  # fmt: skip

    def __init__(self, storages: tuple[Storage, ...], grad: int = NO, node: Node | None = None) -> None:
        self.storages = storages
        self.grad = grad
        self.node = node
        self.leaf = node is None
        self.base: Tensor | None = None
        self.base_age = 0
        self.bound = False  # a name holds it already
        self.age = 0  # counts the writes that changed its node
        self.many = False  # one of several views of one call
        self.expanded = False
        self.view_no_grad = False
        self.quiet = ""  # ".data" or ".numpy()": writes through it move no counter
        self.uncertain = False  # may be another tensor than the one meant
        self.opaque = False  # not known to be a tensor at all
        self.guessed = False  # opaque, and all that was done to it can be done to a number as well
        self.param = False
        self.gradient = False  # handed to a hook
        self.of_function = ""
        self.function_view = (
            False  # a custom Function gave out its own input: autograd lets nobody write to it
        )
        self.inference = False  # made under inference_mode
        self.turns: tuple[int, ...] | None = None  # a .grad, read when so many backwards had added to it
        self.sparse = ""
        self.edited: Any = None
        self.swapped = False
        self.name = ""
        self.origin: Place | None = None
        self.attrs: dict[str, Any] | None = None

    def history(self) -> Node | None:
        """Its node; a view whose base was written since looks at the base's."""
        base = self.base
        if base is not None and base.age != self.base_age:
            top = base.history()
            self.base_age = base.age
            if base.grad > self.grad:
                self.grad = base.grad
            if top is not None:
                self.node = Node("view", [top], top.place, ())
                self.leaf = False
        return self.node


class Group(Tensor):
    """Each of several tensors: reads keep all of them, writes write all of them."""

    __slots__ = ("members",)

    def __init__(self, members: list[Tensor]) -> None:
        super().__init__(tuple(s for m in members for s in m.storages), max(m.grad for m in members))
        self.members = members

    def history(self) -> Any:
        for member in self.members:
            node = member.history()
            if node is not None:
                return node
        return self.node


class Const(Value):
    """A Python constant. `soft`: it stands for others, as the counter of a loop does; `last`: in its last round."""

    __slots__ = ("last", "soft", "value")

    def __init__(self, value: Any, soft: bool = False, last: bool = False) -> None:
        self.value = value
        self.soft = soft
        self.last = last


class Number(Value):
    """A number of which nothing else is known: a length, an item(), what arithmetic on such gives. Never a tensor."""

    __slots__ = ()


class Opaque(Value):
    """Nothing is known, except that it is the same thing each time: attributes and its memory, if it is a tensor, last."""

    __slots__ = ("attrs", "data", "likely", "name", "tensor")

    def __init__(self, name: str = "", data: bool = False) -> None:
        self.name = name
        self.likely = False  # a tensor, as what forward() is given mostly is
        self.data = data  # a batch of data, or a part of one: it has no graph
        self.attrs: dict[str, Value] = {}
        self.tensor: Tensor | None = None

    def as_tensor(self) -> Tensor:
        if self.tensor is None:
            made = Tensor((Storage(self.name, "opaque"),), NO if self.data else MAYBE)
            made.opaque = True
            made.guessed = not self.likely
            made.name = self.name
            self.tensor = made
        return self.tensor

    def part(self, key: str, name: str) -> Value:
        """An attribute or an item: the same one each time."""
        if key not in self.attrs:
            self.attrs[key] = Opaque(name, self.data)
        return self.attrs[key]


class Seq(Value):
    """A list, tuple or iterator. `rest` stands for items beyond those known.

    What it holds is changed by Walker.hold alone, and never in place: what one arm of a branch does is taken back for the other.
    """

    __slots__ = ("held", "kind")

    def __init__(self, items: list[Value], kind: str = "list", rest: Value | None = None) -> None:
        self.held: dict[str, Any] = {"items": items, "rest": rest}
        self.kind = kind

    @property
    def items(self) -> list[Value]:
        return self.held["items"]

    @property
    def rest(self) -> Value | None:
        return self.held["rest"]


class Dict(Value):
    __slots__ = ("items", "rest")

    def __init__(self, items: dict[Any, Value] | None = None, rest: Value | None = None) -> None:
        self.items = items or {}
        self.rest = rest


class Alt(Value):
    """One of these, by which arm of a branch ran. `missing`: the arms on which there is none."""

    __slots__ = ("missing", "options")

    def __init__(self, options: list[tuple[Path, Value]], missing: list[Path] | None = None) -> None:
        self.options = options
        self.missing = missing or []


class Ext(Value):
    """A name from outside the project, by its dotted name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Lazy(Value):
    """A name imported from the project, or assigned at the top of a module: found out when it is used."""

    __slots__ = ("module", "name", "node")

    def __init__(self, module: Module, name: str, node: ast.expr | None = None) -> None:
        self.module = module
        self.name = name
        self.node = node


class ModuleValue(Value):
    __slots__ = ("module",)

    def __init__(self, module: Module) -> None:
        self.module = module


class Function(Value):
    __slots__ = (
        "cls", "env", "grad_mode", "inference", "kind", "module", "name", "node", "visited", "wrapped", "wrappers",
    )  # fmt: skip

    def __init__(self, node: Any, module: Module, env: Any, cls: Class | None = None) -> None:
        self.node = node  # FunctionDef or Lambda
        self.module = module
        self.env = env  # the enclosing scopes
        self.cls = cls
        self.name: str = getattr(node, "name", "<lambda>")
        self.kind = ""  # "static", "class", "property"
        self.grad_mode: bool | None = None  # set by a decorator
        self.inference = False
        self.visited = False
        self.wrappers: list[ast.expr] = []  # decorators of which it is not known what they do
        self.wrapped: Value | None = None  # what they make of it


class Class(Value):
    __slots__ = ("attrs", "bases", "dataclass", "module", "name", "node", "outside")

    def __init__(self, name: str, node: ast.ClassDef, module: Module) -> None:
        self.name = name
        self.node = node
        self.module = module
        self.bases: list[Value] = []
        self.outside: list[str] = []  # dotted names of bases outside the project
        self.attrs: dict[str, Value] = {}
        self.dataclass = False


class Bound(Value):
    """A method with its object. `name` alone for those of values that are built in."""

    __slots__ = ("function", "name", "owner")

    def __init__(self, owner: Value, name: str, function: Value | None = None) -> None:
        self.owner = owner
        self.name = name
        self.function = function


class Partial(Value):
    __slots__ = ("args", "function", "keywords")

    def __init__(self, function: Value, args: list[Value], keywords: dict[str, Value]) -> None:
        self.function = function
        self.args = args
        self.keywords = keywords


class Instance(Value):
    """An object. `nn` is the class of torch.nn (or "optim", "ctx", "dist", ...) that gives it its behaviour."""

    __slots__ = ("attrs", "call", "cls", "nn", "site", "stray")

    def __init__(self, cls: Class | None = None, nn: str = "") -> None:
        self.cls = cls
        self.nn = nn
        self.attrs: dict[str, Value] = {}
        self.site: Place | None = None
        self.call: ast.AST | None = None  # that made it
        self.stray = False  # made to try a class that the program does not use: its history is not known


NONE = Const(None)


def unknown(name: str = "") -> Opaque:
    return Opaque(name)


def is_none(value: Value) -> bool:
    return isinstance(value, Const) and value.value is None


def is_const(value: Value | None, wanted: Any) -> bool:
    return isinstance(value, Const) and value.value is wanted
