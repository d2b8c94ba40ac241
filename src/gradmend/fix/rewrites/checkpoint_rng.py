"""A checkpointed region that draws random numbers must draw the same again: `preserve_rng_state=True`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts

RANK = 5


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if "checkpoint" not in facts.message:
        return
    for file, text in project.sources.items():
        tree = project.tree(file) if "preserve_rng_state" in text else None
        flags = [
            node
            for node in (tree.nodes if tree is not None else ())
            if isinstance(node, cst.Arg)
            and node.keyword is not None
            and node.keyword.value == "preserve_rng_state"
            and isinstance(node.value, cst.Name)
            and node.value.value == "False"
        ]
        if tree is not None and flags:
            lines = ", ".join(str(tree.lines(f)[0]) for f in flags)
            new = tree.replace(*(tree.cut(f.value, "True") for f in flags))
            yield Candidate(f"preserve_rng_state=True (line {lines})", "checkpoint_rng", RANK, {file: new})
