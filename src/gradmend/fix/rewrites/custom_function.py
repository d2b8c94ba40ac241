"""Custom `autograd.Function`s: keep a copy of what is handed to `ctx` and overwritten later."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites.functions import customs, first_name
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts

RANK = 35


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    for custom in customs(project):
        tree = custom.tree
        for value in custom.kept():
            if not isinstance(value, cst.Name):
                continue
            new = tree.replace(tree.cut(value, f"{value.value}.clone()"))
            ctx, line = first_name(custom.keeper), tree.lines(value)[0]
            title = f"keep a copy of `{value.value}` on {ctx} (line {line})"
            named = facts.saved is not None and any(p.line == line for p in facts.saved.chain)
            yield Candidate(title, "custom_function", RANK + (not named), {custom.file: new})
