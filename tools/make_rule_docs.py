"""Makes docs/rules/ from the rules themselves: one page each, and the list of them all.

python tools/make_rule_docs.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from gradmend.rules import all_rules

OUT = Path(__file__).parents[1] / "docs/rules"
GROUPS = (
    ("GM10", "Found by backward: a kept value was overwritten, and PyTorch raises"),
    ("GM11", ""),
    ("GM12", "Refused at the write, or at a second backward"),
    ("GM13", ""),
    ("GM2", "Silent: PyTorch goes on with a wrong gradient"),
    ("GM3", "Sparse tensors: what PyTorch refuses, and what trains instead"),
)


def pages() -> dict[str, str]:
    """File name -> text."""
    rules = all_rules()
    made = {f"{rule.code}.md": rule.as_markdown() for rule in rules}
    lines = [
        "# The rules",
        "",
        "Each page was made from the rule's own file in `src/gradmend/rules`; `gradmend explain GM101` shows the same.",
    ]
    for prefix, heading in GROUPS:
        if heading:
            lines += ["", f"## {heading}", "", "| code | name | cause |", "|---|---|---|"]
        lines += [
            f"| [{r.code}]({r.code}.md) | {r.name} | {r.summary} |"
            for r in rules
            if r.code.startswith(prefix)
        ]
    made["README.md"] = "\n".join(lines) + "\n"
    return made


def stale() -> list[str]:
    """The names of pages that are missing, different, or of a rule that is gone."""
    made = pages()
    there = {p.name: p.read_text(encoding="utf-8") for p in OUT.glob("*.md")}
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))


def main() -> int:
    names = stale()
    if "--check" in sys.argv[1:]:
        print("fresh" if not names else f"stale: {', '.join(names)}; run tools/make_rule_docs.py")
        return 1 if names else 0
    OUT.mkdir(parents=True, exist_ok=True)
    made = pages()
    for name in names:
        if name in made:
            (OUT / name).write_text(made[name], encoding="utf-8")
        else:
            (OUT / name).unlink()
    print(f"{len(made)} pages, {len(names)} changed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
