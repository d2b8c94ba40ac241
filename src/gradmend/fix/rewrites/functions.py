"""Custom `autograd.Function`s as they stand in the source: their methods, and what they hand to `ctx`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Project
from gradmend.fix.source.tree import Tree


@dataclass(frozen=True, slots=True)
class Custom:
    file: str
    tree: Tree
    name: str
    methods: dict[str, cst.FunctionDef]

    @property
    def forward(self) -> cst.FunctionDef:
        return self.methods["forward"]

    @property
    def keeper(self) -> cst.FunctionDef:
        """The method that has ctx and keeps things on it: `setup_context` where there is one, else `forward`."""
        return self.methods.get("setup_context", self.forward)

    @property
    def inputs(self) -> list[str]:
        given = [p.name.value for p in self.forward.params.params]
        return given if "setup_context" in self.methods else given[1:]

    @property
    def marks(self) -> bool:
        """Does it mark inputs that it writes to?"""
        return any(".mark_dirty" in self.tree.code(m) for m in self.methods.values())

    def kept(self) -> Iterator[cst.BaseExpression]:
        """Each value that goes to `ctx`, by attribute or by save_for_backward."""
        ctx = first_name(self.keeper)
        for node in self.tree.inside(self.keeper):
            if isinstance(node, cst.Assign):
                yield from (value for _, value in hung(node, ctx))
            elif isinstance(node, cst.Call) and syntax.dotted(node.func) == f"{ctx}.save_for_backward":
                yield from (a.value for a in node.args if not a.star)


def customs(project: Project) -> Iterator[Custom]:
    for file, text in project.sources.items():
        tree = project.tree(file) if "Function" in text else None
        for node in tree.nodes if tree is not None else ():
            if not isinstance(node, cst.ClassDef) or tree is None:
                continue
            if not any(syntax.dotted(b.value).rsplit(".", 1)[-1] == "Function" for b in node.bases):
                continue
            methods = {m.name.value: m for m in node.body.body if isinstance(m, cst.FunctionDef)}
            if "forward" in methods:
                yield Custom(file, tree, node.name.value, methods)


def first_name(method: cst.FunctionDef) -> str:
    params = method.params.params
    return params[0].name.value if params else "ctx"


def hung(assign: cst.Assign, ctx: str) -> Iterator[tuple[cst.Attribute, cst.BaseExpression]]:
    """`ctx.a = x` and `ctx.a, ctx.b = x, y`: each attribute with its value."""
    for one in assign.targets:
        pairs: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
        if isinstance(one.target, cst.Tuple) and isinstance(assign.value, cst.Tuple):
            pairs = [
                (t.value, v.value) for t, v in zip(one.target.elements, assign.value.elements, strict=False)
            ]
        elif isinstance(one.target, cst.Attribute):
            pairs = [(one.target, assign.value)]
        for target, value in pairs:
            if isinstance(target, cst.Attribute) and syntax.dotted(target.value) == ctx:
                yield target, value
