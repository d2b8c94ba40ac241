"""A graph that backward walks twice: keep it with `retain_graph=True`, or make the gradient a part of the graph."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts, Place
from gradmend.fix.source.text import Cut
from gradmend.fix.source.tree import Tree

RANK = 5
_GRAD = ("torch.autograd.grad", "autograd.grad", "grad")
_POSITIONAL = 4  # outputs, inputs, grad_outputs, retain_graph: the next one is create_graph
_NOTE = (
    "keeps the gradient of the forward that ran, through the whole shared graph; the graph stays in memory. "
    "If the shared part is meant to be a constant (truncated backpropagation through time, advantages, "
    "targets), detach() it instead: cheaper, and another gradient."
)
_DIFFERENTIABLE = (
    "the gradient that this line takes is part of the loss, and backward() now goes through it (a second derivative). "
    "If it is meant to be a constant, retain_graph=True instead: cheaper, and another gradient."
)


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if not facts.second:
        return
    places = [*(p for w in facts.writes for p in w.chain), *facts.backward]
    used = facts.carrier.used_by if facts.carrier is not None else None
    if used is not None:  # it may be a call inside a custom backward, which no trial records
        places.insert(0, Place(used.file, used.line, used.function, used.col, used.end_line, used.end_col))
    every: dict[str, list[Cut]] = {}
    order = 0
    for place in dict.fromkeys(places):
        tree = project.tree(place.file)
        for cut in _retained(tree, place) if tree else ():
            if cut in every.get(place.file, []):
                continue
            every.setdefault(place.file, []).append(cut)
            assert tree is not None
            title = f"retain_graph=True at line {place.line}"
            yield Candidate(title, "second_backward", RANK + order, {place.file: tree.replace(cut)}, _NOTE)
            order += 1
    if order > 1:
        sources = {f: t.replace(*cuts) for f, cuts in every.items() if (t := project.tree(f))}
        yield Candidate("retain_graph=True at each backward", "second_backward", RANK + order, sources, _NOTE)


def differentiated(project: Project, facts: Facts) -> Iterator[Candidate]:
    """A gradient that the loss is made of, taken without a graph of its own: a constant, to retain_graph=True."""
    places = [p for w in facts.writes for p in w.chain] if facts.second else []
    for place in dict.fromkeys(places):
        tree = project.tree(place.file)
        for cut in _made_again(tree, place) if tree else ():
            assert tree is not None
            title = f"create_graph=True at line {place.line}"
            yield Candidate(title, "create_graph", RANK, {place.file: tree.replace(cut)}, _DIFFERENTIABLE)


def _made_again(tree: Tree, place: Place) -> Iterator[Cut]:
    """`u_x = torch.autograd.grad(u, x)[0]` -> `torch.autograd.grad(u, x, create_graph=True)[0]`."""
    for statement in tree.statements(place.line, place):
        for call in syntax.walk(statement):
            if not isinstance(call, cst.Call) or syntax.dotted(call.func) not in _GRAD or not call.args:
                continue
            given = [a.keyword.value for a in call.args if a.keyword]
            if "create_graph" in given or len(call.args) - len(given) > _POSITIONAL:
                continue
            at = tree.span(call.args[-1].value)[1]
            yield at, at, ", create_graph=True"


def _retained(tree: Tree, place: Place) -> Iterator[Cut]:
    for statement in tree.statements(place.line, place):
        for call in syntax.walk(statement):
            if not isinstance(call, cst.Call):
                continue
            name = syntax.dotted(call.func).rsplit(".", 1)[-1]
            if not name and isinstance(call.func, cst.Attribute):
                name = call.func.attr.value
            grad = syntax.dotted(call.func) in _GRAD
            if name != "backward" and not grad:
                continue
            given = next((a for a in call.args if a.keyword and a.keyword.value == "retain_graph"), None)
            if given is not None:
                yield tree.cut(given.value, "True")
                continue
            _, end = tree.span(call)
            if not call.args:
                yield end - 1, end - 1, "retain_graph=True"
            else:
                at = tree.span(call.args[-1].value)[1]
                yield at, at, ", retain_graph=True"
