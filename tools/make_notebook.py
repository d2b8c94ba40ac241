"""Runs examples/notebook.ipynb from top to bottom in a real kernel and keeps what its cells showed."""

from __future__ import annotations

import sys
from pathlib import Path

import nbclient
import nbformat

HOME = Path(__file__).resolve().parents[1] / "examples" / "notebook.ipynb"


def executed(path: Path) -> nbformat.NotebookNode:
    book = nbformat.read(path, as_version=4)
    # Two cells fail, and are meant to.
    client = nbclient.NotebookClient(
        book,
        timeout=600,
        kernel_name="python3",
        allow_errors=True,
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    return book


def main() -> int:
    book = executed(HOME)
    book.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(book, HOME)
    print(f"{HOME}: {sum(len(c.get('outputs', ())) for c in book.cells)} outputs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
