"""Let one forward use copies of its module's parameters, so that an update cannot reach its graph.

Exact whatever else the update touches: nothing moves, and gradients still flow to the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts

RANK = 60
_COPIES = (
    ("parameters", "{{n: p.clone() for n, p in {0}.named_parameters()}}"),
    (
        "parameters and buffers",
        "{{n: t.clone() for n, t in [*{0}.named_parameters(), *{0}.named_buffers()]}}",
    ),
)


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if facts.saved is None or facts.saved.direct:
        return  # an op of the user's own line saved it, not a module
    for depth, place, tree in syntax.spots(project, facts.saved.chain[:3]):
        for statement in tree.statements(place.line, place):
            if not isinstance(statement, cst.BaseSmallStatement):
                continue
            order = 0
            for call in syntax.walk(statement):
                if not isinstance(call, cst.Call) or not syntax.is_place(call.func):
                    continue
                if syntax.dotted(call.func).split(".")[0] in (
                    "torch",
                    "F",
                    "nn",
                    "print",
                    "super",
                    "len",
                    "range",
                ):
                    continue
                if any(a.star for a in call.args):
                    continue
                module = tree.code(call.func)
                given = [tree.code(a.value) for a in call.args if a.keyword is None]
                named = [
                    f'"{a.keyword.value}": {tree.code(a.value)}' for a in call.args if a.keyword is not None
                ]
                args = f"({', '.join(given)}{',' if len(given) == 1 else ''})"
                tail = f", {{{', '.join(named)}}}" if named else ""
                for kind, copies in _COPIES:
                    new = f"{syntax.torch_name(tree)}.func.functional_call({module}, {copies.format(module)}, {args}{tail})"
                    title = f"run `{module}` on line {place.line} with copies of its {kind}"
                    text = tree.replace(tree.cut(call, new))
                    rank = RANK + 10 * depth + order + 30 * (kind != "parameters")
                    yield Candidate(title, "clone_parameters", rank, {place.file: text})
                order += 1
