"""docs/how-to: a page for each cause, with a program, what PyTorch says, what Gradmend says, and the proven edit.

python how_to.py [GM101 ...]
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from common import DOCS, gradmend, plainly, watched

from gradmend.rules import Rule, all_rules

OUT = DOCS / "how-to"


def main() -> None:
    OUT.mkdir(exist_ok=True)
    only = sys.argv[1:]
    rows = ["# How to mend it, by cause", ""]
    rows += [
        "Every story and diff on these pages was printed by the command above it: `make pages` runs them again.",
        "",
    ]
    rows += ["| what happened | code |", "|---|---|"]
    for rule in all_rules():
        if rule.code.startswith("GM3"):
            continue
        if all(find_spec(m) for m in rule.needs) and (not only or rule.code in only):
            (OUT / f"{rule.code}.md").write_text(page(rule), encoding="utf-8")
            print(rule.code, flush=True)
        rows.append(f"| [{rule.summary}]({rule.code}.md) | [{rule.code}](../rules/{rule.code}.md) |")
    (OUT / "README.md").write_text("\n".join(rows) + "\n", encoding="utf-8")


def page(rule: Rule) -> str:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "train.py").write_text(rule.bad.strip() + "\n")
        with contextlib.chdir(home):
            (_, said), story = plainly("train.py"), watched("train.py")
        checked = "" if story else gradmend("check", "train.py", folder=home).stdout.strip()
        mended = gradmend("fix", "--time-limit", "30", "train.py", folder=home)
    parts = [f"# {rule.summary}", f'```python title="train.py" linenums="1"\n{rule.bad.strip()}\n```']
    parts.append("## What PyTorch says")
    if said:
        parts.append(f"```text\n{said}\n```")
    else:
        parts.append("Nothing: it runs, and the gradient is wrong.")
    parts.append("## What Gradmend says")
    command = "run" if story else "check"  # what a run can't see may stand in the source
    parts.append(f'```text title="gradmend {command} train.py"\n{story or checked}\n```')
    parts.append("## The fix")
    if mended.returncode == 0 and mended.stdout.startswith("---"):
        told = "\n".join(line for line in mended.stdout.splitlines() if not line.startswith("rejected:"))
        parts.append(f'```diff title="gradmend fix train.py"\n{told}\n```')
    else:
        parts.append(
            f"No edit is proven automatically here. Write it so:\n\n```python\n{rule.good.strip()}\n```"
        )
    parts.append(
        f"{rule.fix.strip()}\n\nMore: [{rule.code}](../rules/{rule.code}.md), or `gradmend explain {rule.code}`."
    )
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
