"""`%gradmend fix`: the cells that ran, as one program, and the edit that mends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradmend.integrations import ipython

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_SECONDS = 600


def fix(shell: InteractiveShell) -> None:
    source = program(list(shell.user_ns.get("In", ())))
    if not source:
        raise ipython.UsageError("no cell has run yet: there is nothing to fix")
    with tempfile.TemporaryDirectory(prefix="gradmend-notebook-") as folder:
        script, out = Path(folder, "notebook.py"), Path(folder, "out.json")
        script.write_text(source, encoding="utf-8")
        words = [sys.executable, "-m", "gradmend", "fix", "--report", str(out), str(script)]
        env = {**os.environ, "NO_COLOR": "1", "MPLBACKEND": "agg"}
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, env=env, check=False)
        if not out.exists():
            raise ipython.UsageError((done.stderr or done.stdout).strip().splitlines()[-1])
        _show(json.loads(out.read_text(encoding="utf-8")), done.stdout, str(script))


def _show(report: dict[str, Any], text: str, script: str) -> None:
    from gradmend.report.html import fragment

    names = shown_as(script)
    if not report["conflicts"]:
        print(ipython.renamed(text, names))
        return
    data = ipython.renamed(report["conflicts"], names)
    ipython._display(ipython.renamed(text, names), fragment(data))


def shown_as(script: str) -> dict[str, str]:
    """What stands for the script's name: in a diff first, whose names begin with a letter of its own."""
    return {f"a{script}": "a/the cells", f"b{script}": "b/the cells", script: "the cells"}


def program(cells: list[str]) -> str:
    """The cells as a script, in the order in which they ran. A later run of an edited cell is there as it ran."""
    out: list[str] = []
    for number, cell in enumerate(cells):
        lines = _python(cell.splitlines())
        if any(line.strip() for line in lines):
            out += [f"# In [{number}]", *lines, ""]
    return "\n".join(out)


def _python(lines: list[str]) -> list[str]:
    """Without magics: `In` holds them as calls of get_ipython()."""
    if lines and lines[0].startswith("get_ipython().run_cell_magic('gradmend'"):
        return _cell_of(lines)
    return [line for line in lines if "get_ipython()" not in line]


def _cell_of(lines: list[str]) -> list[str]:
    import ast

    call = ast.parse("\n".join(lines)).body[0]
    assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
    return str(ast.literal_eval(call.value.args[2])).splitlines()
