"""`inplace=True` -> `inplace=False`, at the call or at the constructor of the module that wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 8

# Where `inplace` stands when it is given by position (modules, then functions with the tensor first).
_MODULES = {"ReLU": 0, "ReLU6": 0, "SiLU": 0, "Mish": 0, "Hardswish": 0, "Hardsigmoid": 0, "SELU": 0}
_MODULES |= {
    "LeakyReLU": 1,
    "ELU": 1,
    "CELU": 1,
    "Dropout": 1,
    "Dropout1d": 1,
    "Dropout2d": 1,
    "Dropout3d": 1,
}
_MODULES |= {"AlphaDropout": 1, "FeatureAlphaDropout": 1, "RReLU": 2, "Threshold": 2, "Hardtanh": 2}
_FUNCTIONS = {
    "relu": 1,
    "relu6": 1,
    "silu": 1,
    "mish": 1,
    "hardswish": 1,
    "selu": 1,
    "leaky_relu": 2,
    "elu": 2,
}
_FUNCTIONS |= {
    "celu": 2,
    "dropout": 3,
    "dropout2d": 3,
    "rrelu": 4,
    "threshold": 3,
    "hardtanh": 3,
    "hardsigmoid": 1,
}


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if not any("inplace" in text for text in project.sources.values()):
        positional = any(
            re.search(r"\b(ReLU6?|ELU|SiLU|Dropout\w*|LeakyReLU)\(", t) for t in project.sources.values()
        )
        if not positional:
            return
    lines = {(p.file, p.line) for w in facts.writes for p in w.chain}
    everywhere: dict[str, list[Cut]] = {}
    for file in _files(project, facts):
        tree = project.tree(file)
        assert tree is not None
        flags = list(_flags(tree))
        everywhere[file] = [cut for _, cut, _ in flags]
        for node, cut, statement_cuts in flags:
            line = tree.lines(node)[0]
            near = 0 if (file, line) in lines else 1 if _called_there(tree, node, file, lines) else 3
            title = f"inplace=False at line {line}"
            yield Candidate(title, "inplace_flag", RANK + near, {file: tree.replace(*statement_cuts, cut)})
    several = {f: cuts for f, cuts in everywhere.items() if cuts}
    if sum(map(len, several.values())) > 1:
        sources = {f: tree.replace(*c) for f, c in several.items() if (tree := project.tree(f))}
        yield Candidate("inplace=False everywhere", "inplace_flag", RANK + 50, sources)


def _files(project: Project, facts: Facts) -> list[str]:
    story = [f for f in facts.files if f in project.sources]
    return [*story, *(f for f in project.sources if f not in story)]


def _flags(tree: Tree) -> Iterator[tuple[cst.CSTNode, Cut, list[Cut]]]:
    """Each true `inplace`: its node, the cut that turns it off, and what else a bare call needs."""
    for node in tree.nodes:
        if isinstance(node, cst.Call):
            for index, arg in enumerate(node.args):
                if _is_true(arg.value) and _is_flag(node, arg, index):
                    yield node, tree.cut(arg.value, "False"), _bare(tree, node)
        elif isinstance(node, cst.Param) and node.name.value == "inplace" and node.default is not None:
            if _is_true(node.default):
                yield node, tree.cut(node.default, "False"), []
        elif isinstance(node, cst.Assign) and _is_true(node.value):
            target = node.targets[0].target
            if isinstance(target, cst.Attribute) and target.attr.value == "inplace":
                yield node, tree.cut(node.value, "False"), []


def _is_true(node: cst.CSTNode | None) -> bool:
    return isinstance(node, cst.Name) and node.value == "True"


def _is_flag(call: cst.Call, arg: cst.Arg, index: int) -> bool:
    if arg.keyword is not None:
        return arg.keyword.value == "inplace"
    name = syntax.dotted(call.func).rsplit(".", 1)[-1]
    return not arg.star and index in (_MODULES.get(name, -1), _FUNCTIONS.get(name, -1))


def _bare(tree: Tree, call: cst.Call) -> list[Cut]:
    """`F.relu(x, inplace=True)` alone on a line must keep its result in `x`."""
    above = tree.parent(call)
    if isinstance(above, cst.Expr) and call.args and syntax.is_place(call.args[0].value):
        start, _ = tree.span(call)
        return [(start, start, f"{tree.code(call.args[0].value)} = ")]
    return []


def _called_there(tree: Tree, node: cst.CSTNode, file: str, lines: set[tuple[str, int]]) -> bool:
    """Is the constructor in `self.act = ...` and `self.act(` on a line of the story?"""
    for above in tree.up(node):
        if isinstance(above, cst.Assign):
            target = tree.code(above.targets[0].target).split(".")[-1]
            return any(f == file and f"{target}(" in tree.line_text(n) for f, n in lines)
    return False
