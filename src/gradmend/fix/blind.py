"""Programs whose saves no ledger sees: inside a checkpointed region the forward is run again in backward.

PyTorch does not check what the second run keeps (2.13), so an in-place write there gives a wrong gradient in silence.
Float64 differences of the forward tell; the lines that write in place are the ones to look at.
"""

from __future__ import annotations

import libcst as cst

from gradmend.fix.candidate import Project
from gradmend.fix.facts import Event, Facts, Place
from gradmend.fix.rewrites.rebind import inplace_call

MESSAGE = "the gradient is not the derivative of the forward that ran, and the program checkpoints part of it"
_MOST = 12


def checkpoints(project: Project) -> bool:
    return any("checkpoint(" in text for text in project.sources.values())


def facts_of(project: Project) -> list[Facts]:
    """One story for each line that writes in place."""
    found: list[Facts] = []
    for file in project.sources:
        tree = project.tree(file)
        assert tree is not None
        for node in tree.nodes:
            index = isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Subscript)
            call = isinstance(node, cst.Call) and inplace_call(node)
            flag = isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "inplace"
            if not (index or call or flag or isinstance(node, cst.AugAssign)):
                continue
            place = Place(file, tree.lines(node)[0])
            event = Event("", None, (place,), quiet=True)
            found.append(Facts(kind="silent", message=MESSAGE, writes=(event,)))
    return found[:_MOST]
