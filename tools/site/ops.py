"""docs/what-ops-keep.md: one table of what each op of the installed torch keeps for backward."""

from __future__ import annotations

import torch
from common import DOCS

from gradmend.story.knowledge import saves
from gradmend.story.knowledge._entries import by_op

HEAD = """# What each op keeps

What decides whether a write breaks backward is what the ops around it *keep*. This table was read from the
`derivatives.yaml` that comes with torch {version} (`make pages` writes it again; `gradmend saves exp` asks the torch that you
have, ops made of others included). What stands here must stay as it is until backward has run; everything else may be
written. Press <kbd>Ctrl</kbd>+<kbd>F</kbd>, or use the search above.

| op | keeps of its inputs | keeps of its results |
|---|---|---|
"""


def main() -> None:
    rows = []
    for op in sorted(by_op()):
        if op.startswith("_") or op.endswith("_backward"):
            continue
        known = saves(op)
        if not known.overloads:
            continue
        results = [s for s in known.keeps if s in known.results]
        inputs = [s for s in known.keeps if s not in known.results]
        rows.append(f"| `{op}` | {_names(inputs)} | {_names(results)} |")
    version = torch.__version__.split("+")[0]
    (DOCS / "what-ops-keep.md").write_text(
        HEAD.format(version=version) + "\n".join(rows) + "\n", encoding="utf-8"
    )
    print(len(rows), "ops")


def _names(slots: list[str]) -> str:
    return " ".join(f"`{s}`" for s in slots) or "nothing"


if __name__ == "__main__":
    main()
