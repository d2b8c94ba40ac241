"""The command: formats, settings, noqa, stdin, notebooks, the cache, fixes, exit codes; and no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gradmend.cli.main import main

BAD = """\
import torch

x = torch.ones(3, requires_grad=True)
y = x.exp()
y += 1
y.sum().backward()
"""
GOOD = BAD.replace("y += 1", "y = y + 1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "good.py").write_text(GOOD)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main(["check", "--output-format", "json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_json_has_what_other_tools_rely_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = told(capsys, ".")
    assert code == 1 and len(found) == 1
    said = found[0]
    assert {"file", "line", "column", "end_line", "end_column", "rule", "severity", "message", "fix"} <= set(
        said
    )
    assert (said["file"], said["line"], said["column"], said["end_column"]) == ("bad.py", 5, 1, 7)
    assert (said["rule"], said["severity"]) == ("GM101", "error")
    assert [r["line"] for r in said["related"]] == [4, 6]


def test_what_an_imported_file_does_is_told_at_the_call(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.py").write_text(
        BAD.replace("y += 1", "bump(y)").replace("import torch\n", "import torch\nfrom helper import bump\n")
    )
    (folder / "helper.py").write_text("def bump(t):\n    return t.add_(1)\n")
    for words in (["bad.py"], ["bad.py"], ["bad.py", "--no-cache"]):  # found, from the cache, and without it
        code, (found,) = told(capsys, *words)
        assert (code, found["file"], found["line"], found["rule"]) == (1, "bad.py", 6, "GM101")
        assert "in bump() at helper.py:2" in found["message"] and "exp on line 5" in found["message"]
        assert found["fix"] is None
        assert ("helper.py", 2) in [(r["file"], r["line"]) for r in found["related"]]
    _, found = told(capsys, ".")  # whoever asks for the file itself is told there, and once
    assert [(f["file"], f["line"]) for f in found] == [("helper.py", 2)]
    bad = (folder / "bad.py").read_text()
    (folder / "bad.py").write_text(bad.replace("bump(y)", "bump(y)  # noqa: GM101"))
    assert told(capsys, "bad.py") == (0, [])
    (folder / "bad.py").write_text(bad)
    (folder / "helper.py").write_text("def bump(t):\n    return t.add_(1)  # noqa: GM101\n")
    assert told(capsys, "bad.py") == (0, [])


def test_a_second_backward_in_an_imported_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "import torch\nfrom helper import go\nx = torch.ones(3, requires_grad=True)\ny = x.exp().sum()\ny.backward()\ngo(y)\n"
    (folder / "main.py").write_text(source)
    (folder / "helper.py").write_text("def go(loss):\n    loss.backward()\n")
    _, found = told(capsys, "main.py")
    assert [(f["file"], f["line"], f["rule"]) for f in found] == [("main.py", 6, "GM131")]


def test_exit_codes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "good.py"]) == 0
    assert main(["check", "bad.py"]) == 1
    assert main(["check", "bad.py", "--exit-zero"]) == 0
    assert main(["check", "missing.py"]) == 2
    assert main(["check", "bad.py", "--select", "XX1"]) == 2
    assert "there is no rule XX1" in capsys.readouterr().err


def test_full_shows_the_write_the_save_and_the_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "bad.py"])
    out = capsys.readouterr().out
    assert out.startswith(
        "error[GM101]: += changes `y` in place, but exp on line 4 kept its result for backward() on line 6"
    )
    assert "5 | y += 1\n  | ^^^^^^" in out
    assert "help: " in out


def test_concise_and_github(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "bad.py", "--output-format", "concise"])
    assert capsys.readouterr().out.startswith("bad.py:5:1: GM101 [error] ")
    main(["check", "bad.py", "--output-format", "github"])
    assert capsys.readouterr().out.startswith(
        "::error file=bad.py,line=5,col=1,endLine=5,endColumn=7,title=gradmend GM101::"
    )


def test_sarif_validates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "broken.py").write_text("def f(:\n")
    main(["check", ".", "--output-format", "sarif"])
    log = json.loads(capsys.readouterr().out)
    schema = json.loads((Path(__file__).parent / "data/sarif-2.1.0.json").read_text())
    jsonschema.Draft7Validator(schema).validate(log)
    results = {r["ruleId"]: r for r in log["runs"][0]["results"]}
    assert [p["physicalLocation"]["region"]["startLine"] for p in results["GM101"]["relatedLocations"]] == [
        4,
        6,
    ]
    assert set(results) == {"GM000", "GM101"}


def test_a_syntax_error_has_its_place_and_the_others_go_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.py").write_text("import torch\nx = torch.ones(3\ny = 1\n")
    code, found = told(capsys, ".")
    assert code == 1
    assert {(f["file"], f["rule"], f["line"]) for f in found} == {
        ("bad.py", "GM101", 5),
        ("broken.py", "GM000", 2),
    }


@pytest.mark.parametrize(
    ("comment", "quiet"),
    [("noqa", True), ("noqa: GM101", True), ("noqa: E501, GM101", True), ("noqa: GM102", False)],
)
def test_noqa(folder: Path, capsys: pytest.CaptureFixture[str], comment: str, quiet: bool) -> None:
    (folder / "bad.py").write_text(BAD.replace("y += 1", f"y += 1  # {comment}"))
    assert (told(capsys, "bad.py")[1] == []) == quiet


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ('select = ["GM2"]', 0),
        ('select = ["GM1"]', 1),
        ('ignore = ["GM101"]', 0),
        ('exclude = ["bad*"]', 0),
        ('[tool.gradmend.per-file-ignores]\n"bad.py" = ["GM101"]', 0),
        ('[tool.gradmend.per-file-ignores]\n"other.py" = ["GM101"]', 1),
    ],
)
def test_settings(folder: Path, capsys: pytest.CaptureFixture[str], table: str, found: int) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.gradmend]\n{table}\n")
    assert len(told(capsys, ".")[1]) == found
    assert len(told(capsys, ".", "--isolated")[1]) == 1


@pytest.mark.parametrize(
    "table",
    ["[tool.gradmend]\nselekt = []", "[tool.gradmend]\nselect = 3", "tool = [", "[tool]\ngradmend = 3"],
)
def test_bad_settings_are_one_clear_line(
    folder: Path, capsys: pytest.CaptureFixture[str], table: str
) -> None:
    (folder / "pyproject.toml").write_text(table)
    assert main(["check", "."]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_line_wins_over_the_settings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pyproject.toml").write_text('[tool.gradmend]\nselect = ["GM2"]\n')
    assert len(told(capsys, ".", "--select", "GM101,GM102")[1]) == 1


def test_fix_keeps_the_meaning_and_ends_the_finding(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "bad.py", "--fix"]) == 0
    fixed = (folder / "bad.py").read_text()
    assert fixed == BAD.replace("y += 1", "y = y.clone()\ny += 1")
    done = subprocess.run([sys.executable, "-c", fixed + "\nassert x.grad.allclose(x.exp())"], check=False)
    assert done.returncode == 0
    assert main(["check", "bad.py"]) == 0


@pytest.mark.parametrize(
    ("line", "fixed"),
    [
        ("é = 'é'; y += 1", "é = 'é'; y = y.clone(); y += 1"),
        ("if True:\n\ty = x.exp()\n\ty += 1", "if True:\n\ty = x.exp()\n\ty = y.clone()\n\ty += 1"),
    ],
)
def test_a_fix_suits_its_line(folder: Path, line: str, fixed: str) -> None:
    (folder / "bad.py").write_text(BAD.replace("y += 1", line), encoding="utf-8")
    assert main(["check", "bad.py", "--fix"]) == 0
    assert (folder / "bad.py").read_text(encoding="utf-8") == BAD.replace("y += 1", fixed)


def test_a_name_that_may_not_be_alone_is_only_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = BAD.replace("y += 1", "if True: y += 1")
    (folder / "bad.py").write_text(text)
    assert main(["check", "bad.py", "--fix"]) == 1
    assert (folder / "bad.py").read_text() == text
    capsys.readouterr()
    main(["check", "bad.py", "--diff"])
    assert "+if True: y = y.clone(); y += 1" in capsys.readouterr().out


def test_under_no_grad_a_clone_would_cut_the_gradient(folder: Path) -> None:
    text = BAD.replace("y += 1", "with torch.no_grad():\n    y += 1")
    (folder / "bad.py").write_text(text)
    assert main(["check", "bad.py", "--fix"]) == 1
    assert (folder / "bad.py").read_text() == text


def test_what_is_left_after_a_fix_is_told_with_its_new_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tail = "z = x.exp()\nw = z\nz += 1\nz.sum().backward()\n"
    (folder / "bad.py").write_text(BAD + tail)
    code, found = told(capsys, "--fix", "bad.py")
    lines = (folder / "bad.py").read_text().splitlines()
    assert code == 1 and [lines[f["line"] - 1] for f in found] == ["z += 1"]
    assert [lines[r["line"] - 1] for r in found[0]["related"]] == ["z = x.exp()", "z.sum().backward()"]
    assert "exp on line 8 " in found[0]["message"]


def test_carets_stand_below_what_they_mark(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Below tabs, and letters that are two columns wide."""
    (folder / "t.py").write_text(
        "import torch\ndef f(x):\n\ty = x.exp()\n\t'\u6f22'; y += 1\n\treturn y\n"
        "f(torch.ones(3, requires_grad=True)).sum().backward()\n",
        encoding="utf-8",
    )
    main(["check", "t.py"])
    shown = capsys.readouterr().out
    assert "3 | \ty = x.exp()\n  | \t    ------- exp" in shown
    assert "4 | \t'\u6f22'; y += 1\n  | \t      ^^^^^^\n" in shown


def test_diff_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "bad.py", "--diff"]) == 1
    assert "+y = y.clone()" in capsys.readouterr().out
    assert (folder / "bad.py").read_text() == BAD


def test_an_alias_makes_a_fix_unsafe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.py").write_text(BAD.replace("y += 1", "z = y\ny += 1"))
    before = (folder / "bad.py").read_text()
    assert main(["check", "bad.py", "--fix"]) == 1
    assert (folder / "bad.py").read_text() == before


def test_stdin(folder: Path) -> None:
    run = [sys.executable, "-m", "gradmend", "check", "--output-format", "json", "-"]
    done = subprocess.run(run, input=BAD, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and json.loads(done.stdout)[0]["line"] == 5
    done = subprocess.run([*run, "--fix"], input=BAD, capture_output=True, text=True, check=False)
    assert "y = y.clone()\n" in done.stdout


def test_notebook_by_cell(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, tail = BAD.split("y += 1\n")
    cells = [
        {"cell_type": "markdown", "source": ["# notes"]},
        {
            "cell_type": "code",
            "source": ["%matplotlib inline\n", "!pip install x\n", *head.splitlines(keepends=True)],
        },
        {"cell_type": "code", "source": "%%bash\nls if then"},
        {"cell_type": "code", "source": ["y += 1\n", tail]},
    ]
    (folder / "n.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))
    _, found = told(capsys, "n.ipynb")
    assert [(f["cell"], f["line"], f["rule"]) for f in found] == [(4, 1, "GM101")]
    main(["check", "n.ipynb", "--output-format", "concise"])
    assert capsys.readouterr().out.startswith(
        "n.ipynb:cell 4:1:1: GM101 [error] += changes `y` in place, but exp on line 6 of cell 2 kept its result "
        "for backward() on line 2\n"
    )
    main(["check", "n.ipynb"])
    shown = capsys.readouterr().out
    assert "1 | y += 1\n  | ^^^^^^\n2 | y.sum().backward()\n" in shown
    assert "note: n.ipynb:cell 2:6: exp keeps its result here" in shown


def notebook(*sources: str, indent: int | None = 1) -> str:
    cells = [{"cell_type": "code", "source": s.splitlines(keepends=True), "outputs": [0.1]} for s in sources]
    content = {"cells": [*cells, {"cell_type": "markdown", "source": "é"}], "nbformat": 4}
    return json.dumps(content, indent=indent, ensure_ascii=False) + "\n"


def test_a_notebook_is_fixed_in_its_cells_and_nowhere_else(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = "%time x = torch.ones(3)\n?x"
    (folder / "n.ipynb").write_text(notebook(BAD, other), encoding="utf-8")
    fixed = notebook(BAD.replace("y += 1", "y = y.clone()\ny += 1"), other)
    assert main(["check", "--diff", "n.ipynb"]) == 1
    assert "--- a/n.ipynb:cell 1\n" in (out := capsys.readouterr().out) and "+y = y.clone()\n" in out
    assert main(["check", "--fix", "n.ipynb"]) == 0
    assert (folder / "n.ipynb").read_text(encoding="utf-8") == fixed
    # Cells run in any order: a name that another cell binds is not fixed without asking.
    apart = notebook(*BAD.split("y += 1\n")[:1], "y += 1\n" + BAD.split("y += 1\n")[1])
    (folder / "n.ipynb").write_text(apart, encoding="utf-8")
    assert main(["check", "--fix", "n.ipynb"]) == 1
    assert (folder / "n.ipynb").read_text(encoding="utf-8") == apart


def test_a_notebook_that_would_be_laid_out_anew_is_left(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = notebook(BAD, indent=3)
    (folder / "n.ipynb").write_text(odd, encoding="utf-8")
    assert main(["check", "--fix", "n.ipynb"]) == 1
    assert (folder / "n.ipynb").read_text(encoding="utf-8") == odd
    assert "its JSON would be laid out anew" in capsys.readouterr().err
    main(["check", "--diff", "n.ipynb"])
    assert "+y = y.clone()\n" in capsys.readouterr().out


def test_the_cache_answers_and_hears_of_changes_in_imports(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.py").unlink()
    helper, broken = "def bump(y):\n    return y + 1\n", "def bump(y):\n    y += 1\n    return y\n"
    (folder / "helper.py").write_text(helper)
    (folder / "main.py").write_text(
        BAD.replace("import torch", "import torch\nfrom helper import bump").replace("y += 1", "y = bump(y)")
    )
    assert told(capsys, ".")[1] == []
    assert (folder / ".gradmend_cache/check.json").exists()
    (folder / "helper.py").write_text(broken)
    assert [(f["file"], f["line"]) for f in told(capsys, ".")[1]] == [("helper.py", 2)]
    assert [(f["file"], f["line"]) for f in told(capsys, ".")[1]] == [("helper.py", 2)]
    (folder / ".gradmend_cache/check.json").write_text("{")
    assert len(told(capsys, ".")[1]) == 1


def test_many_files_on_many_cores_give_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(40):
        (folder / f"m{i}.py").write_text(BAD if i % 4 == 0 else GOOD)
    one = told(capsys, ".", "--no-cache", "--jobs", "1")
    two = told(capsys, ".", "--no-cache", "--jobs", "2")
    assert one == two and len(one[1]) == 11


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "libcst", "rich", "numba", "numpy", "yaml"):
            raise ImportError(f"{name} must not be imported")
sys.meta_path.insert(0, Block())
from gradmend.cli.main import main
sys.exit(main(["check", "--output-format", sys.argv[1], "--no-cache", "bad.py"]))
"""


@pytest.mark.parametrize("how", ["full", "concise", "json", "github", "sarif"])
def test_it_runs_where_torch_is_not_installed(folder: Path, how: str) -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED, how], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "GM101" in done.stdout, done.stderr


def test_what_is_no_regular_file_is_passed_over_or_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A FIFO would be waited for, for ever."""
    os.mkfifo(folder / "pipe.py")
    (folder / "link.py").symlink_to("nowhere.py")
    assert main(["check", "."]) == 1
    assert "1 error, 0 warnings in 2 files" in capsys.readouterr().err
    assert main(["check", "pipe.py"]) == 2
    assert "pipe.py: can't read it: not a regular file" in capsys.readouterr().err


def test_magics_are_told_from_python(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`%` and `?` mean something in Python as well: only what Python can't read is a magic."""
    cells = [
        "%matplotlib inline\n!pip install x \\\n  y\nfiles = !ls\ntorch.exp?\n?torch.exp\nimport torch",
        'text = """really?\n%d of them?\n""" % (7\n    % 4)\nfor _ in range(2):\n    %time x = torch.ones(3, requires_grad=True)',
        "x = torch.ones(3, requires_grad=True)\ny = x.exp()\ny += 1\ny.sum().backward()",
        "%%bash\nif [ -f x ]; then y += 1; fi",
    ]
    notebook = {"cells": [{"cell_type": "code", "source": source} for source in cells]}
    (folder / "n.ipynb").write_text(json.dumps(notebook))
    code, found = told(capsys, "n.ipynb")
    assert code == 1
    assert [(f["rule"], f["cell"], f["line"]) for f in found] == [("GM101", 3, 3)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x):\n\ty = torch.exp(x)\n\ty += 1\n\treturn y", "\ty = y.clone()\n\ty += 1\n"),
        (
            "def f(x):\r\n    y = torch.exp(x)\r\n    y += 1\r\n    return y\r\n",
            "    y = y.clone()\r\n    y += 1\r\n",
        ),
        (
            "def f(x):\n    é = '\N{GRINNING FACE}'; y = torch.exp(x)\n    y += 1  # \N{GRINNING FACE}\n    return y\n",
            "    y = y.clone()\n    y += 1  # ",
        ),
    ],
)
def test_a_fix_keeps_tabs_line_ends_and_a_missing_last_one(folder: Path, before: str, after: str) -> None:
    tail = "\nimport torch\nf(torch.ones(3, requires_grad=True)).sum().backward()"
    (folder / "odd.py").write_bytes((before + tail).encode())
    main(["check", "odd.py", "--fix"])
    fixed = (folder / "odd.py").read_bytes().decode()
    assert after in fixed and fixed.endswith(tail)
    compile(fixed, "odd.py", "exec")


def test_a_fix_goes_through_a_link_and_says_where_it_may_not_write(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "link.py").symlink_to("bad.py")
    assert main(["check", "link.py", "--fix"]) == 0
    assert (folder / "link.py").is_symlink() and "y.clone()" in (folder / "bad.py").read_text()
    (folder / "bad.py").write_text(BAD)
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may write anywhere
    assert main(["check", "bad.py", "--fix"]) == 1
    assert "can't write it: Permission denied" in capsys.readouterr().err
    assert (folder / "bad.py").read_text() == BAD


def test_a_file_that_was_not_followed_to_its_end_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradmend.check.analysis._MOST", 5)
    for words in (["-q"], ["-q", "--diff"], []):
        assert main(["check", "--no-cache", "bad.py", *words]) == 0
        assert "not followed to the end, too many calls and branches: bad.py\n" in capsys.readouterr().err
    main(["check", "--no-cache", "bad.py", "--output-format", "sarif"])
    log = json.loads(capsys.readouterr().out)
    schema = json.loads((Path(__file__).parent / "data" / "sarif-2.1.0.json").read_text(encoding="utf-8"))
    jsonschema.validate(log, schema)
    (note,) = log["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert note["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "bad.py"


def test_the_diff_of_stdin_has_its_name(folder: Path) -> None:
    command = [sys.executable, "-m", "gradmend", "check", "--diff", "-", "--stdin-filename", "bad.py"]
    done = subprocess.run(command, input=BAD, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("--- a/bad.py\n+++ b/bad.py\n")


def test_the_diff_of_an_absolute_path_applies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "--diff", str(folder / "bad.py")])
    assert capsys.readouterr().out.startswith("--- a/bad.py\n+++ b/bad.py\n")


def test_what_could_not_be_read_is_left_out_by_its_own_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "old.py").write_text("import torch\nprint 'backward'\n")
    for words in ([], ["--select", "GM1"], ["--ignore", "ALL"]):
        code, found = told(capsys, "old.py", *words)
        assert (code, [f["rule"] for f in found]) == (1, ["GM000"])
    assert told(capsys, "old.py", "--ignore", "GM000") == (0, [])
    (folder / "pyproject.toml").write_text('[tool.gradmend.per-file-ignores]\n"old*" = ["GM000"]\n')
    assert told(capsys, "old.py") == (0, [])
    (folder / "pyproject.toml").unlink()
    for text in ("print 'backward'  # noqa: GM000\n", "# gradmend: skip-file\nprint 'backward'\n"):
        (folder / "old.py").write_text("import torch\n" + text)
        assert told(capsys, "old.py") == (0, [])
    assert main(["explain", "GM000"]) == 0
    assert "--ignore GM000" in capsys.readouterr().out


def test_fix_says_what_it_leaves(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.py").write_text(BAD.replace("y += 1", "z = y\ny += 1"))
    main(["check", "--fix", "bad.py"])
    assert "1 more rewrite may change the meaning and is left to you: --diff shows" in capsys.readouterr().err


def test_noqa_takes_the_beginning_of_a_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for codes, count in (("GM1", 0), ("GM2", 1), ("E501, GM10", 0)):
        (folder / "bad.py").write_text(BAD.replace("y += 1", f"y += 1  # noqa: {codes}"))
        assert len(told(capsys, "bad.py")[1]) == count
