"""Processes that a program starts: followed whichever way they start, told in the report of the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm

START = """\
import sys
import torch
import torch.multiprocessing as mp


def broken(rank=0):
    x = torch.ones(3, requires_grad=True)
    h = x.exp()
    h += 1
    h.sum().backward()
    print(rank, [round(v, 3) for v in x.grad.tolist()], flush=True)


def ends(how):
    import os, signal
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        broken()
    finally:
        os._exit(0)


class Mine(mp.Process):
    def run(self):
        broken()


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if sys.argv[1] == "loader":
            broken(index)
        return torch.ones(2)


def main():
    how = sys.argv[1]
    if how in ("spawn", "fork", "forkserver"):
        child = mp.get_context(how).Process(target=broken)
    elif how == "class":
        child = Mine()
    elif how == "torch":
        return mp.spawn(broken, nprocs=2)
    elif how in ("loader", "calm"):
        return print(sum(len(batch) for batch in torch.utils.data.DataLoader(Data(), num_workers=2)))
    elif how == "pool":
        with mp.get_context("spawn").Pool(1) as pool:
            return pool.map(broken, [0])
    elif how in ("killed", "leaves"):
        child = mp.get_context("fork").Process(target=ends, args=(how,))
        child.start()
        return child.join()
    elif how == "alone":
        import os, subprocess
        subprocess.run([sys.executable, "-c", "pass"])
        if os.fork() == 0:
            os._exit(0)
        return os.wait()
    child.start()
    child.join()
    sys.exit(child.exitcode)


if __name__ == "__main__":
    main()
"""
RIGHT = "[2.718, 2.718, 2.718]"


def run(folder: Path, how: str, *flags: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    (folder / "start.py").write_text(START)
    words = [sys.executable, "-m", "gradmend", "run", *flags, "--report", "out.json", "start.py", how]
    done = warm.run(words, cwd=folder, timeout=600)
    return done, json.loads((folder / "out.json").read_text())


def lines(report: dict[str, Any]) -> list[list[int]]:
    return [[c["line"] for c in conflict["culprits"]] for conflict in report["conflicts"]]


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
@pytest.mark.parametrize("how", ["spawn", "fork", "class"])
def test_a_child_that_is_stopped(tmp_path: Path, how: str) -> None:
    done, report = run(tmp_path, how)
    assert done.returncode == 1, "the program's own: the child failed"
    assert report["outcome"] == "conflict" and lines(report) == [[9]]
    assert list(report["stats"]["children"].values()) == ["conflict"]
    assert "met in" in report["conflicts"][0]["notes"][0]
    assert "h += 1" in done.stderr and "gradmend/capture" not in done.stderr


@pytest.mark.parametrize("how", ["spawn", "torch", "loader", "pool"])
def test_children_that_are_healed(tmp_path: Path, how: str) -> None:
    done, report = run(tmp_path, how, "--heal")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(RIGHT) == {"torch": 2, "loader": 4}.get(how, 1)
    assert report["outcome"] == "healed" and lines(report) == [[9]], "one conflict, met by several"
    assert set(report["stats"]["children"].values()) == {"healed"}


def test_a_conflict_in_a_worker_of_a_loader(tmp_path: Path) -> None:
    """The loader catches it in the worker, and raises another error in the program while the worker waits."""
    done, report = run(tmp_path, "loader")
    assert done.returncode == 1 and "DataLoader worker process" in done.stderr
    assert report["outcome"] == "conflict" and lines(report) == [[9]]
    assert "conflict" in report["stats"]["children"].values() and "not told" not in report["stats"]


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_a_child_that_leaves_by_os_exit_has_told_all(tmp_path: Path) -> None:
    done, report = run(tmp_path, "leaves")
    assert done.returncode == 0 and report["outcome"] == "conflict" and lines(report) == [[9]]
    assert "not told" not in done.stderr and "not told" not in report["stats"]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_child_that_is_killed_is_named(tmp_path: Path) -> None:
    done, report = run(tmp_path, "killed")
    (words,) = report["stats"]["not told"]
    assert words.endswith("exit code -9) ended without an account")
    assert done.stderr == f"gradmend: not told: {words}\n"


def test_children_that_do_nothing_are_only_counted(tmp_path: Path) -> None:
    done, report = run(tmp_path, "calm")
    assert done.returncode == 0 and report["outcome"] == "clean" and report["conflicts"] == []
    assert list(report["stats"]["children"].values()) == ["clean", "clean"]
    assert done.stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_what_is_not_followed_is_told(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "alone")
    assert done.returncode == 0
    assert done.stderr.count("a child of os.fork() is watched, but what it meets is not in the report") == 1
    assert done.stderr.count("not watched: ") == 1 and "a program of its own" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_a_forked_child_says_nothing_of_its_parents_run(tmp_path: Path) -> None:
    (tmp_path / "fork.py").write_text("import os\nif os.fork():\n    os.wait()\n")
    words = [sys.executable, "-m", "gradmend", "run", "fork.py"]
    done = warm.run(words, cwd=tmp_path, timeout=600)
    assert done.returncode == 0 and done.stderr.count("os.fork()") == 1, done.stderr


def test_the_report_that_was_asked_for_is_named(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "spawn", "--heal")
    assert "healed, GM101; out.json has it" in done.stderr and "OUT.json" not in done.stderr


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGTERM)", "raise KeyboardInterrupt", "pass"])
def test_the_folder_of_sessions_goes_with_the_run(tmp_path: Path, end: str) -> None:
    words = f"""
import os, signal
from gradmend.running import children
with children.folder() as path:
    assert not os.path.exists(path)  # no child, no folder
    children._make(path)
    assert os.path.isdir(path)
    {end}
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""
    done = warm.run(
        [sys.executable, "-c", words],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    wanted = {"os": -signal.SIGTERM, "ra": -signal.SIGINT, "pa": 0}[end[:2]]
    assert done.returncode in (wanted, 1 if end.startswith("raise") else wanted), done.stderr
    assert not list(tmp_path.iterdir())
