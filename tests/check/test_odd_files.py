"""Several projects at once, names and line ends that nobody expects, links, strings that look like comments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gradmend.check.files import check_file
from gradmend.cli.main import main

BAD = "import torch\nx = torch.ones(3, requires_grad=True)\ny = x.exp()\ny += 1\ny.sum().backward()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(["check", "--no-cache", "--output-format", "concise", *words])
    return capsys.readouterr().out


def test_each_file_has_the_settings_of_its_own_project(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, settings in (
        ("a", 'ignore = ["GM101"]'),
        ("b", ""),
        ("c", 'exclude = ["train.py"]'),
        ("a/d", "select = []"),
    ):
        (folder / name / "sub").mkdir(parents=True)
        (folder / name / "sub/train.py").write_text(BAD)
        (folder / name / "pyproject.toml").write_text(f"[tool.gradmend]\n{settings}\n")
    (folder / "b/plain").mkdir()
    (folder / "b/plain/pyproject.toml").write_text("[tool.other]\n")  # says nothing: the one above counts
    (folder / "b/plain/train.py").write_text(BAD)
    seen = [line.partition(":")[0] for line in told(capsys, ".").splitlines()]
    assert seen == [
        os.path.join(*p.split("/")) for p in ("a/d/sub/train.py", "b/plain/train.py", "b/sub/train.py")
    ]
    assert told(capsys, "a/sub/train.py", "b/sub/train.py").count("GM101") == 1
    assert told(capsys, "b/sub/train.py", "a/sub/train.py").count("GM101") == 1
    assert told(capsys, "--isolated", "a/sub/train.py").count("GM101") == 1
    assert (
        told(capsys, "--ignore", "GM102", "a/sub/train.py").count("GM101") == 1
    )  # the command line's words win


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ("# gradmend: skip-file\n" + BAD, True),
        ('HELP = """\n# gradmend: skip-file\n"""\n' + BAD, False),
        ("z = 1  # gradmend: skip-file\n" + BAD, False),
    ],
)
def test_only_a_comment_skips_a_file(text: str, skipped: bool) -> None:
    assert (check_file("/nowhere/main.py", text.encode()).findings == []) is skipped


def test_a_long_file_without_torch_may_be_wrong_too() -> None:
    found = check_file("/nowhere/main.py", ("a = 1\n" * 2500 + "def f(:\n").encode()).findings
    assert [(f.place.line, f.rule) for f in found] == [(2501, "GM000")]


@pytest.mark.skipif(os.name == "nt", reason="such names can't be made there")
@pytest.mark.parametrize("name", ["new\nline.py", "es\x1b[31mc.py"])
@pytest.mark.parametrize("form", ["concise", "full"])
def test_names_that_would_move_the_cursor(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, form: str
) -> None:
    (folder / name).write_text(BAD)
    (folder / name.replace(".py", "2.py")).write_text("def f(:\n")
    (folder / name.replace(".py", ".ipynb")).write_text("{}")
    main(["check", "--no-cache", "--output-format", form, "."])
    said = capsys.readouterr()
    shown = name.encode("unicode_escape").decode()
    assert name not in said.out + said.err and "\x1b" not in said.out + said.err
    assert f"{shown}:4:1" in said.out and shown.replace(".py", "2.py") in said.out
    assert shown.replace(".py", ".ipynb") in said.err
    main(["check", "--no-cache", "--diff", "."])
    assert f"+++ b/{shown}" in capsys.readouterr().out


def test_escapes_in_the_source_are_not_played(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.py").write_text(BAD.replace("y += 1", "y += 1  # \x1b[31m"))
    main(["check", "--no-cache", "a.py"])
    assert "\x1b" not in capsys.readouterr().out


def test_the_other_names_of_a_file_see_its_fix(folder: Path) -> None:
    (folder / "a.py").write_text(BAD)
    os.link(folder / "a.py", folder / "b.txt")
    assert main(["check", "--fix", "a.py"]) == 0
    assert (
        (folder / "b.txt").read_text()
        == (folder / "a.py").read_text()
        == BAD.replace("y += 1", "y = y.clone()\ny += 1")
    )
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) == ["a.py", "b.txt"]


@pytest.mark.parametrize("ends", [("\r\n", "\n"), ("\n", "\r\n"), ("\r", "\n"), ("\n", "\r")])
def test_a_new_line_ends_as_the_one_it_stands_at(folder: Path, ends: tuple[str, str]) -> None:
    """The first three lines end one way, the rest the other."""
    first, rest = ends
    lines = BAD.splitlines()
    before = first.join(lines[:3]) + first + rest.join(lines[3:]) + rest
    (folder / "a.py").write_bytes(before.encode())
    assert main(["check", "--fix", "a.py"]) == 0
    assert (folder / "a.py").read_bytes() == before.replace("y += 1", f"y = y.clone(){rest}y += 1").encode()
