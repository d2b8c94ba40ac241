"""A program may ruin what imports need: what we load late is found all the same, and its own lists stay its own.

Such programs run cold: in a fork of a warm process, what loads late would be there already.
"""

import sys

import pytest
from programs import BROKEN, MODES, Program

from gradmend.own_imports import own_imports

EMPTIED = "import sys, torch\nsys.path[:] = []\n"


@MODES
def test_a_program_that_empties_the_path_ends_as_under_python(tmp_path, mode):
    program = Program(tmp_path, EMPTIED + "sys.meta_path[:] = []\nprint('done')\n")
    ran = program.gradmend(before=[*mode, "--html", "page.html"], cold=True)
    assert (ran.code, ran.out) == (0, "done\n"), ran.err
    assert "Traceback" not in ran.err
    assert ran.report["outcome"] == "clean" and (tmp_path / "page.html").exists()


@MODES
def test_its_conflict_is_told(tmp_path, mode):
    ran = Program(tmp_path, EMPTIED + BROKEN).gradmend(before=mode, cold=True)
    assert ran.code == (0 if mode == ["--heal"] else 1)
    assert "ModuleNotFoundError" not in ran.err and "gradmend/" not in ran.err
    if mode != ["--audit"]:
        assert "[GM101]" in ran.err and ran.report["conflicts"][0]["rule"] == "GM101"


def test_a_child_that_empties_its_path_is_in_the_report(tmp_path):
    program = Program(
        tmp_path,
        """
        import sys, torch
        import torch.multiprocessing as mp
        def work():
            sys.path[:] = []
            x = torch.ones(3, requires_grad=True)
            y = x.exp()
            y += 1
            try:
                y.sum().backward()
            except RuntimeError:
                print("stopped", flush=True)
        if __name__ == "__main__":
            p = mp.get_context("spawn").Process(target=work)
            p.start(); p.join()
            print(p.exitcode)
        """,
    )
    ran = program.gradmend(cold=True)
    assert ran.out == "stopped\n0\n", ran.err
    assert [c["rule"] for c in ran.report["conflicts"]] == ["GM101"]


def test_a_working_folder_that_is_gone(tmp_path):
    program = Program(
        tmp_path,
        """
        import os, sys, torch
        os.mkdir("gone")
        os.chdir("gone")
        os.rmdir(os.getcwd())
        sys.path[:] = ["", "lib"]
        exec(compile("def f(y):\\n    y += 1\\n", "relative.py", "exec"))
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        f(y)
        y.sum().backward()
        """,
    )
    ran = program.gradmend(before=["--html", "page.html"], cold=True)
    assert ran.code == 1
    assert "[GM101]" in ran.err and "FileNotFoundError" not in ran.err, ran.err
    assert ran.report["outcome"] == "conflict" and (tmp_path / "page.html").exists()


def test_a_report_goes_where_the_command_was_given(tmp_path):
    program = Program(tmp_path, "import os\nos.mkdir('inner')\nos.chdir('inner')\n")
    program.gradmend(before=["--html", "page.html"])
    assert (tmp_path / "page.html").exists() and not (tmp_path / "inner" / "page.html").exists()


@pytest.mark.parametrize(
    "ends",
    ["sys.stderr.close()", "sys.stderr = None", "sys.stderr = type('Tee', (), {'write': print})()"],
    ids=["closed", "none", "written-to-only"],
)
def test_a_program_without_stderr(tmp_path, ends):
    program = Program(tmp_path, f"import sys\n{BROKEN.replace('y += 1', 'y = y + 1')}\n{ends}\n")
    plain, ours = program.python(cold=False), program.gradmend()
    assert (ours.code, ours.out) == (plain.code, plain.out)


def test_the_programs_lists_are_back_afterwards(monkeypatch):
    theirs = ["/a/folder/of/the/program"]
    monkeypatch.setattr(sys, "path", theirs)
    with own_imports():
        assert sys.path is not theirs and len(sys.path) > 1 and sys.path[-1] == theirs[0]
    assert sys.path is theirs == ["/a/folder/of/the/program"]


def test_lists_that_have_all_of_ours_stay_in_place():
    before = sys.path, sys.meta_path
    with own_imports():
        assert (sys.path, sys.meta_path) == before and sys.path is before[0]
