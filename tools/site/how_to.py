"""docs/how-to: a page for each cause, with a program, what PyTorch says, what Gradmend says, and the proven edit."""

from __future__ import annotations

import contextlib
import io
import runpy
import tempfile
import traceback
from importlib.util import find_spec
from pathlib import Path

from common import DOCS, gradmend, story_in

from gradmend.rules import Rule, all_rules
from gradmend.running.runner import Options, run_program

OUT = DOCS / "how-to"


def main() -> None:
    OUT.mkdir(exist_ok=True)
    rows = ["# How to mend it, by cause", ""]
    rows += [
        "Every story and diff on these pages was printed by the command above it: `make pages` runs them again.",
        "",
    ]
    rows += ["| what happened | code |", "|---|---|"]
    for rule in all_rules():
        if rule.code.startswith("GM3"):
            continue
        if all(find_spec(m) for m in rule.needs):
            (OUT / f"{rule.code}.md").write_text(page(rule), encoding="utf-8")
            print(rule.code, flush=True)
        rows.append(f"| [{rule.summary}]({rule.code}.md) | [{rule.code}](../rules/{rule.code}.md) |")
    (OUT / "README.md").write_text("\n".join(rows) + "\n", encoding="utf-8")


def page(rule: Rule) -> str:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "train.py").write_text(rule.bad.strip() + "\n")
        with contextlib.chdir(home):
            said, story = plainly(), watched()
        mended = gradmend("fix", "--time-limit", "30", "train.py", folder=home)
    parts = [f"# {rule.summary}", f'```python title="train.py" linenums="1"\n{rule.bad.strip()}\n```']
    parts.append("## What PyTorch says")
    if said:
        parts.append(f"```text\n{said}\n```")
    else:
        parts.append("Nothing: it runs, and the gradient is wrong.")
    parts.append("## What Gradmend says")
    parts.append(f'```text title="gradmend run train.py"\n{story}\n```')
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


def plainly() -> str:
    """PyTorch's own last words; empty where it has none. In this process: torch is loaded once for all pages."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path("train.py", run_name="__main__")
    except Exception as error:
        return traceback.format_exception_only(error)[-1].strip()
    return ""


def watched() -> str:
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard), contextlib.redirect_stdout(io.StringIO()):
        run_program(Options("train.py"))
    return story_in(heard.getvalue())


if __name__ == "__main__":
    main()
