"""Notebooks in a real kernel: what one sees below the cells."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="no nbclient: it comes with the dev extra")
nbclient = pytest.importorskip("nbclient", reason="no nbclient: it comes with the dev extra")
pytest.importorskip("ipykernel", reason="no ipykernel: it comes with the dev extra")

CELLS = [
    "%load_ext gradmend\nimport torch",
    "x = torch.ones(3, requires_grad=True)",
    "%%gradmend\nh = x.exp()\nh += 1\nh.sum().backward()",
    "%%gradmend heal\nh = x.exp()\nh += 1\nh.sum().backward()\nx.grad",
    "h = x.exp()\nh += 1",
    "h.sum().backward()",
    "%%gradmend\nx.grad = None\n(x * 2).sum().backward()\nx.grad.tolist()",
    "%gradmend sideways",
    "1 / 0",
    "raise RuntimeError('mine')",
    "%%time\n%%gradmend\nh = x.exp()\nh += 1\nh.sum().backward()",
    "%%gradmend\n%%time\nh = x.exp()\nh += 1\nh.sum().backward()",
    "%%gradmend heal --budget 4\nh = x.exp()\nh += 1\nh.sum().backward()",
    "%%gradmend heal --budget\n1",
    "%%gradmend heal --budget many\n1",
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The cells' outputs, in one kernel."""
    return outputs(CELLS, tmp_path_factory.mktemp("notebook"))


def outputs(cells: list[str], folder: Path) -> list[Any]:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    client = nbclient.NotebookClient(
        book,
        timeout=600,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return [c.outputs for c in book.cells]


def html(cell: Any) -> str:
    return "".join(
        o.data.get("text/html", "") for o in cell if o.output_type in ("display_data", "execute_result")
    )


def text(cell: Any) -> str:
    return "".join(
        o.data.get("text/plain", "") for o in cell if o.output_type in ("display_data", "execute_result")
    )


def error(cell: Any) -> Any:
    return next((o for o in cell if o.output_type == "error"), None)


def test_a_watched_cell_fails_with_its_story_below_it(ran: list[Any]) -> None:
    failed = error(ran[2])
    assert failed is not None and failed.ename == "ConflictError"
    page, told = html(ran[2]), text(ran[2])
    for words in (page, told):
        assert "In [3]" in words and "h += 1" in words
    assert "In [3]:3" in told and "In [3]:4" in page, (
        "lines as they stand in the cell, the magic's line counted"
    )
    assert "What happened to the memory" in page and "<script" not in page
    trace = "".join(failed.traceback)
    assert (
        "gradmend/capture" not in trace
        and "interactiveshell" not in trace
        and "autograd/graph.py" not in trace
    )
    assert "h.sum().backward()" in trace


def test_a_healed_cell_runs_on(ran: list[Any]) -> None:
    assert error(ran[3]) is None
    assert "tensor([2.7183, 2.7183, 2.7183])" in text(ran[3])
    assert "In [4]" in html(ran[3]) and "kept to heal it" in html(ran[3])
    assert "healed: PyTorch raises" in html(ran[3]) and "gradmend.heal() runs" not in html(ran[3])


def test_cells_without_a_magic_get_the_story_of_pytorchs_error(ran: list[Any]) -> None:
    failed = error(ran[5])
    assert failed is not None and failed.ename == "RuntimeError"
    assert "modified by an inplace operation" in failed.evalue
    assert "In [5]" in html(ran[5]) and "In [6]" in html(ran[5]), "the write was in the cell before"


def test_a_cell_that_is_right_shows_its_own_result_alone(ran: list[Any]) -> None:
    assert error(ran[6]) is None and html(ran[6]) == ""
    assert text(ran[6]) == "[2.0, 2.0, 2.0]"


def test_other_errors_and_bad_words_are_left_as_they_are(ran: list[Any]) -> None:
    assert "%%gradmend" in "".join(error(ran[7]).traceback) and len(error(ran[7]).traceback) == 1
    assert error(ran[8]).ename == "ZeroDivisionError" and html(ran[8]) == ""
    assert error(ran[9]).evalue == "mine" and html(ran[9]) == ""


@pytest.mark.parametrize("at", [10, 11], ids=["above", "below"])
def test_another_magic_beside_ours(ran: list[Any], at: int) -> None:
    failed, told = error(ran[at]), text(ran[at])
    assert failed is not None and failed.ename == "ConflictError"
    assert f"In [{at + 1}]:4" in told and f"In [{at + 1}]:4" in html(ran[at]), "both magics' lines counted"
    assert "Wall time" in "".join(o.get("text", "") for o in ran[at])
    trace = "".join(failed.traceback)
    assert "h.sum().backward()" in trace and "run_cell_magic" not in trace and "<timed" not in trace


def test_a_budget_that_is_too_small_is_told_by_the_cells_number(ran: list[Any]) -> None:
    failed = error(ran[12])
    assert failed.ename == "BudgetError" and "In [13]:3" in failed.evalue
    trace = "".join(failed.traceback)
    assert "gradmend/" not in trace and "ipykernel" not in trace and "run_cell_magic" not in trace


@pytest.mark.parametrize("at", [13, 14])
def test_a_budget_that_is_no_size_is_one_line(ran: list[Any], at: int) -> None:
    (line,) = error(ran[at]).traceback
    assert line.startswith("gradmend: ") and "512MB" in line


def test_the_cells_are_fixed_as_a_program(tmp_path: Path) -> None:
    cells = [
        CELLS[0],
        CELLS[1],
        "%%time\n%%gradmend heal\nh = x.exp()\nh += 1\nh.sum().backward()",
        "%gradmend fix",
        "%gradmend off\n1",
    ]
    ran = outputs(cells, tmp_path)
    assert error(ran[3]) is None
    assert "proven" in html(ran[3]) and "+h = h + 1" in text(ran[3])
    assert "(line 4 of In [3])" in text(ran[3]) and "In [3]:4" in html(ran[3]), "the cell's own lines"
    assert error(ran[4]) is None


@pytest.mark.parametrize("command", ["run", "fix"])
def test_a_notebook_as_a_program_is_told_what_to_do(tmp_path: Path, command: str) -> None:
    (tmp_path / "x.ipynb").write_text("{}")
    words = [sys.executable, "-m", "gradmend", command, "x.ipynb"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "%load_ext gradmend" in done.stderr and done.stderr.count("\n") == 1


def test_the_diff_of_cells_has_a_header_that_reads() -> None:
    from gradmend.integrations.ipython_fix import Joined, program

    source, places = program(["", "a = 1\nget_ipython().run_line_magic('x', '')\nb = 2", "c = 3"])
    assert source.splitlines() == ["# In [1]", "a = 1", "b = 2", "", "# In [2]", "c = 3"]
    script = "/tmp/gradmend-notebook-x/notebook.py"
    text = f"--- a{script}\n+++ b{script}\n@@ -1 +1 @@\nfound at {script}:3, and line 6; line 60\n"
    assert Joined(script, places).told(text) == (
        "--- a/the cells\n+++ b/the cells\n@@ -1 +1 @@\nfound at In [1]:3, and line 1 of In [2]; line 60\n"
    )
    several = "move lines 2-3 below, lines 3 and 6, lines 2-3 and 6 above, lines 2 and 60"
    assert Joined(script, places).told(several) == (
        "move lines 1-3 of In [1] below, lines 3 of In [1] and 1 of In [2], "
        "lines 1-3 of In [1] and 1 of In [2] above, lines 2 and 60"
    )
