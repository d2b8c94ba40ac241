"""Run a program until it raises, as the real torch does."""

from __future__ import annotations

import textwrap
from pathlib import Path

HERE = "# <- here"


def fail(tmp_path: Path, program: str, name: str = "program.py") -> tuple[BaseException, str, int]:
    """The exception, the file, and the line marked with `# <- here`."""
    path = tmp_path / name
    # Python holds equal code in two files to be the same code; a constant of its own tells this file apart.
    text = f"FILE = {str(path)!r}\n{textwrap.dedent(program)}"
    path.write_text(text)
    marked = [n for n, line in enumerate(text.splitlines(), 1) if HERE in line]
    try:
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    except Exception as exc:
        return exc, str(path), marked[0] if marked else 0
    raise AssertionError("the program ran to its end")
