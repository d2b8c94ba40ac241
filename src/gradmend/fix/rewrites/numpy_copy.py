"""Memory shared with numpy is written behind autograd's back: copy it at the boundary."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradmend.fix.rewrites import syntax
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.facts import Facts

RANK = 20
_IN = {"from_numpy", "as_tensor", "asarray", "frombuffer", "from_dlpack"}
_OUT = {"numpy", "__array__"}


def propose(project: Project, facts: Facts) -> Iterator[Candidate]:
    if not any(w.how in ("foreign", "unknown") or w.quiet for w in facts.writes) and facts.kind != "silent":
        return
    lines = {(p.file, p.line) for w in facts.writes for p in w.chain}
    near_functions = {(p.file, p.function) for w in facts.writes for p in w.chain}
    for file in project.sources:
        tree = project.tree(file)
        assert tree is not None
        for node in tree.nodes:
            if not isinstance(node, cst.Call):
                continue
            name = syntax.dotted(node.func).rsplit(".", 1)[-1]
            if not name and isinstance(node.func, cst.Attribute):
                name = node.func.attr.value
            if name in _IN and node.args:
                tail = ".clone()"
            elif name in _OUT and not node.args:
                tail = ".copy()"
            else:
                continue
            line = tree.lines(node)[0]
            function = tree.function(node)
            home = (file, function.name.value if function else "<module>")
            near = 0 if (file, line) in lines else 1 if home in near_functions else 4
            new = tree.replace(tree.cut(node, tree.code(node) + tail))
            yield Candidate(
                f"copy at the numpy boundary (line {line})", "numpy_copy", RANK + near, {file: new}
            )
