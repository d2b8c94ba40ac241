"""What an attack found: --fix writes what was checked or nothing, the cache tells the truth, paths that end are no paths."""

from __future__ import annotations

import io
import json
import os
import runpy
import sys
from pathlib import Path

import pytest

from gradmend.check import alone, applying
from gradmend.check.files import check_file, fingerprint
from gradmend.cli.main import main

HEAD = "import torch\nx = torch.ones(3, requires_grad=True)\n"
BAD = HEAD + "y = x.exp()\ny += 1\ny.sum().backward()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("odd", ["\f", "\u2028", "\x85", "\x0b"])
def test_lines_are_counted_as_python_does(folder: Path, odd: str) -> None:
    file = folder / "a.py"
    file.write_text(f"# one{odd}comment\n" + BAD, encoding="utf-8")
    assert main(["check", "--fix", "a.py"]) == 0
    assert file.read_text(encoding="utf-8").count("y = y.clone()\ny += 1\n") == 1
    runpy.run_path(str(file))


def test_a_line_that_goes_on_gets_no_line_inside(folder: Path) -> None:
    file = folder / "a.py"
    file.write_text(HEAD + "for i in range(3): y = x.exp(); \\\ny += 1; y.sum().backward()\n")
    before = file.read_text()
    main(["check", "--fix", "a.py"])
    assert file.read_text() == before


def test_a_file_that_changed_meanwhile_is_left(folder: Path) -> None:
    file = folder / "a.py"
    file.write_text(BAD)
    found = check_file("a.py").findings
    seen = fingerprint(file.read_bytes())
    made = applying.rewritten("a.py", found, unsafe=False, seen=seen)
    file.write_text("# mine\n" + BAD)
    with pytest.raises(applying.Unfit, match="changed while it was checked"):
        applying.rewritten("a.py", found, unsafe=False, seen=seen)
    with pytest.raises(applying.Unfit, match="changed while it was checked"):
        made.write()
    assert file.read_text() == "# mine\n" + BAD
    assert [p.name for p in folder.iterdir()] == ["a.py"]


@pytest.mark.parametrize("by", ["link", "absolute", "folder"])
def test_one_file_by_two_names_is_checked_and_fixed_once(
    folder: Path, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.py").write_text(BAD)
    (folder / "b.py").symlink_to("a.py")
    names = {"link": ["a.py", "b.py"], "absolute": ["a.py", str(folder / "a.py")], "folder": ["."]}[by]
    assert main(["check", "--output-format", "concise", *names]) == 1
    said = capsys.readouterr()
    assert said.out.count("GM101") == 1 and "1 error, 0 warnings in 1 file" in said.err
    assert main(["check", "--fix", *names]) == 0
    assert "changed while" not in capsys.readouterr().err
    assert (folder / "a.py").read_text().count("clone()") == 1


@pytest.mark.parametrize("what", ["return 3", "break", "continue", "yield 1", "class A:\n    return 3"])
def test_what_only_the_compiler_refuses_is_told(
    folder: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.py").write_text(f"{what}\n{BAD}")
    assert main(["check", "--output-format", "concise", "a.py"]) == 1
    assert "GM000 [error] syntax error" in capsys.readouterr().out
    cells = [{"cell_type": "code", "source": source} for source in (what, BAD)]
    (folder / "n.ipynb").write_text(json.dumps({"cells": cells}))
    assert main(["check", "--output-format", "concise", "n.ipynb"]) == 1
    told = capsys.readouterr().out
    assert "n.ipynb:cell 1:" in told and "GM000" in told and "n.ipynb:cell 2:4:1: GM101 [error]" in told


def test_a_notebook_that_awaits_is_fixed(folder: Path) -> None:
    cells = [{"cell_type": "code", "source": source} for source in ("await something()", BAD)]
    (folder / "n.ipynb").write_text(json.dumps({"cells": cells}, indent=1))
    assert main(["check", "--fix", "n.ipynb"]) == 0
    assert "y = y.clone()" in (folder / "n.ipynb").read_text()


@pytest.mark.parametrize("how", ["--fix", "--diff"])
def test_what_could_not_be_read_is_told_with_a_fix_too(
    folder: Path, how: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"def f(:\n")))
    assert main(["check", how, "-"]) == 1
    said = capsysbinary.readouterr()
    assert said.out == (b"def f(:\n" if how == "--fix" else b"") and b"GM000" in said.err


@pytest.mark.parametrize("encoding", ["unicode_escape", "utf-7"])
def test_an_encoding_that_does_not_come_back_is_left(folder: Path, encoding: str) -> None:
    file = folder / "a.py"
    file.write_bytes(f"# -*- coding: {encoding} -*-\ns = '~'\n{BAD}".encode("ascii"))
    before = file.read_bytes()
    main(["check", "--fix", "a.py"])
    assert file.read_bytes() == before


def test_what_is_remembered_does_not_hang_on_how_a_file_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.py").write_text(BAD)
    for name in ("a.py", str(folder / "a.py"), "./a.py", "a.py", str(folder)):
        assert main(["check", name]) == 1, name


@pytest.mark.parametrize("between", [False, True])
def test_a_program_that_only_calls_is_looked_at_again_when_an_import_changed(
    folder: Path, between: bool
) -> None:
    (folder / "main.py").write_text("from helper import go\ngo()\n")
    helper = folder / ("deeper.py" if between else "helper.py")
    if between:
        (folder / "helper.py").write_text("from deeper import go\n")
    helper.write_text("def go():\n    pass\n")
    assert main(["check", "main.py"]) == 0
    lines = "".join(f"    {line}\n" for line in BAD.splitlines())
    helper.write_text(f"def go():\n{lines}")
    assert main(["check", "main.py"]) == 1
    helper.write_text("def go():\n    pass\n")
    assert main(["check", "main.py"]) == 0


def test_a_file_that_an_import_did_not_find_is_looked_for_again(folder: Path) -> None:
    (folder / "a.py").write_text(HEAD + "from helper import f\ny = x.exp()\nf(y)\ny.sum().backward()\n")
    assert main(["check", "."]) == 0
    (folder / "helper.py").write_text("def f(t):\n    t.add_(1)\n")
    assert main(["check", "."]) == 1


@pytest.mark.parametrize(
    "end", ["sys.exit(1)", "os._exit(1)", "quit()", "assert False, 'never'", "raise SystemExit"]
)
def test_an_arm_that_ends_the_program_is_no_path_to_backward(folder: Path, end: str) -> None:
    (folder / "a.py").write_text(
        f"import os, sys\n{HEAD}y = x.exp()\nif x.sum() < 0:\n    y += 1\n    {end}\ny.sum().backward()\n"
    )
    assert main(["check", "a.py"]) == 0


QUIET = {
    "grad mode is on": "y = x.exp()\nif not torch.is_grad_enabled():\n    y += 1\ny.sum().backward()\n",
    "grad mode is off": "with torch.no_grad():\n    y = x.exp()\n    y.mul_(2) if not torch.is_grad_enabled() else y\n",
}
COPIED = "y = torch.ones(2, 4, requires_grad=True).exp().t().reshape(-1)\ny += 1\ny.sum().backward()\n"


@pytest.mark.parametrize("what", QUIET)
def test_what_the_grad_mode_tells_is_known(folder: Path, what: str) -> None:
    (folder / "a.py").write_text(HEAD + QUIET[what])
    assert main(["check", "a.py"]) == 0


def test_a_reshape_that_may_copy_is_no_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.py").write_text(HEAD + COPIED)
    runpy.run_path(str(folder / "a.py"))  # it does copy here
    main(["check", "a.py"])
    assert "error[" not in capsys.readouterr().out


def test_a_link_to_itself_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "loop.py").symlink_to("loop.py")
    assert main(["check", "loop.py"]) == 2
    assert capsys.readouterr().err.startswith("gradmend: can't read loop.py")


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_a_name_that_is_no_text_is_told_in_every_format(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = os.fsdecode(b"bad\xff.py")
    (folder / name).write_text(BAD)
    for form in ("sarif", "json", "github", "concise", "full"):
        assert main(["check", "--output-format", form, name]) == 1
        assert "GM101" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["[" * 100_000, "x = " + "[" * 100_000])
def test_settings_that_no_one_wrote_by_hand(
    folder: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "pyproject.toml").write_text(content)
    (folder / "a.py").write_text(BAD)
    assert main(["check", "a.py"]) == 2
    assert "pyproject.toml" in capsys.readouterr().err


def test_many_findings_in_one_file_are_checked_in_one_reading(folder: Path) -> None:
    (folder / "a.py").write_text(HEAD + "y = x.exp()\ny += 1\ny.sum().backward()\n" * 300)
    asked = alone._places.cache_info().misses
    found = check_file("a.py").findings
    assert len(found) == 300 and all(f.fix is not None and f.fix.safe for f in found)
    assert alone._places.cache_info().misses - asked == 1


@pytest.mark.parametrize(
    ("line", "quiet"),
    [
        ("y += 1  # noqa", True),
        ("y += 1; s = '# noqa'", False),
        ("y += 1; s = '# noqa: GM101'  # not this", False),
        ("y += 1; s = '#'  # noqa: GM101", True),
    ],
)
def test_a_string_silences_nothing(folder: Path, line: str, quiet: bool) -> None:
    (folder / "a.py").write_text(BAD.replace("y += 1", line))
    assert main(["check", "a.py"]) == (0 if quiet else 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lines", "many"),
        ("stopped", 3),
        ("depends", {"a.py": 5}),
        ("depends", {}),
        ("findings", 7),
        ("findings", [{}]),
        ("line", "four"),
        ("column", None),
        ("message", 1),
        ("related", [{"message": 3}]),
        ("fix", {"message": 2, "applicability": "safe", "edits": [{"line": "x"}]}),
    ],
)
def test_a_cache_of_wrong_kinds_is_made_anew(
    folder: Path, key: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.py").write_text(BAD)
    words = ["check", "--output-format", "json", "a.py"]
    assert main(words) == 1
    right = capsys.readouterr().out
    file = folder / ".gradmend_cache" / "check.json"
    content = json.loads(file.read_text())
    (entry,) = content["files"].values()
    (entry if key in entry else entry["findings"][0])[key] = value
    file.write_text(json.dumps(content))
    assert main(words) == 1
    assert capsys.readouterr().out == right


@pytest.mark.parametrize("encoding", ["gbk", "latin-1", "utf-8"])
def test_marks_stand_below_their_line_in_every_encoding(
    folder: Path, encoding: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "变量" if encoding == "gbk" else "éé"
    text = f"# coding: {encoding}\n" + BAD.replace("y += 1", f"'{name}'; y += 1")
    (folder / "a.py").write_bytes(text.encode(encoding))
    main(["check", "a.py"])
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if "y += 1" in line and line.startswith("5"))
    wide = 2 if encoding == "gbk" else 1
    assert name in lines[at] and lines[at + 1].index("^") == lines[at].index("y +=") + 2 * (wide - 1)


def test_why_a_file_is_left_is_said_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.py").write_text(BAD)
    (folder / "b.py").write_text(BAD)
    real = os.access
    monkeypatch.setattr(os, "access", lambda file, mode: str(file).endswith("b.py") and real(file, mode))
    assert main(["check", "--fix", "a.py", "b.py"]) == 1
    said = capsys.readouterr().err
    assert said.count("can't write it") == 1 and "1 fixed" in said
