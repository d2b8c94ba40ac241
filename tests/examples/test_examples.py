"""Every example does what its first lines say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import warm

EXAMPLES = Path(__file__).parents[2] / "examples"
BROKEN = {"gan.py": "d_opt.step()", "resnet_block.py": "gate.sub_(0.5)", "rnn_buffer.py": "states[t + 1]"}
PLAIN = {"simulator.py": "healed gradient", "learnable_graph.py": "largest error"}
OTHERS = {"ddp.py", "notebook.ipynb", "README.md"}


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    return warm.run([sys.executable, *words], env=env, timeout=600, cwd=cwd)


def test_none_is_forgotten() -> None:
    there = {p.name for p in EXAMPLES.iterdir() if not p.name.startswith(("sparse_", "__", "."))}
    assert there == {*BROKEN, *PLAIN, *OTHERS}
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"({name})" in listed for name in there - {"README.md"})


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_is_refused_told_and_healed(name: str, tmp_path: Path) -> None:
    path = str(EXAMPLES / name)
    assert run(path).returncode == 1
    out = tmp_path / "out.json"
    healed = run("-m", "gradmend", "run", "--heal", "--report", str(out), path)
    assert healed.returncode == 0, healed.stderr
    assert healed.stdout.strip(), "it says what it computed"
    report = json.loads(out.read_text())
    lines = (EXAMPLES / name).read_text().splitlines()
    culprits = [lines[c["culprits"][0]["line"] - 1] for c in report["conflicts"]]
    assert culprits and all(BROKEN[name] in line for line in culprits)


@pytest.mark.parametrize("name", PLAIN)
def test_one_that_runs(name: str) -> None:
    done = run(str(EXAMPLES / name))
    assert done.returncode == 0, done.stderr
    assert PLAIN[name] in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs gloo")
def test_two_ranks(tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", "localhost:0", "-m", "gradmend", "run", "--heal", "--report", "out.json"]
    done = run(*words, str(EXAMPLES / "ddp.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = run(
        "-m", "gradmend", "report", "out.rank0.json", "out.rank1.json", "--html", "out.html", cwd=tmp_path
    )
    assert "2 ranks" in told.stdout and (tmp_path / "out.html").exists()


def test_the_notebook_was_executed_as_it_stands() -> None:
    nbformat = pytest.importorskip("nbformat", reason="no nbclient: it comes with the dev extra")
    pytest.importorskip("ipykernel", reason="no ipykernel: it comes with the dev extra")
    sys.path.insert(0, str(EXAMPLES.parent / "tools"))
    from make_notebook import executed

    kept = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    again = executed(EXAMPLES / "notebook.ipynb")
    kinds = [[o.output_type for o in cell.get("outputs", ())] for cell in kept.cells]
    assert kinds == [[o.output_type for o in cell.get("outputs", ())] for cell in again.cells]
    assert again.cells[-1].outputs[0].text == "True\n", "healed and out of place agree"
    assert sum("text/html" in o.get("data", {}) for cell in kept.cells for o in cell.get("outputs", ())) == 3
