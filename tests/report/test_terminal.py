"""The terminal story, word for word, and what must hold for any story."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmend.model import Frame, Span, Story
from gradmend.report.excerpt import width_of
from gradmend.report.terminal import render


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


def span(
    file: Path, line: int, text: str, label: str, primary: bool = False, function: str = "<module>"
) -> Span:
    """A span over `text` in that line, with columns in bytes as Python gives them."""
    source = file.read_text(encoding="utf-8").splitlines()[line - 1]
    col = len(source[: source.index(text)].encode())
    return Span(Frame(str(file), line, function, "user", col, line, col + len(text.encode())), label, primary)


def show(story: Story, width: int = 80) -> str:
    return render(story, colour=False, width=width)


def test_one_file(program: Path) -> None:
    program.write_text("x = leaf()\ny = x.exp()\nz = 1\ny += 1\n\n\n\n\n\nloss.backward()\n")
    story = Story(
        "error",
        "GM101",
        "`y` was overwritten after exp had kept it",
        (
            span(program, 4, "y += 1", "overwritten here, by add_", primary=True),
            span(program, 2, "x.exp()", "exp kept its result here"),
            span(program, 10, "loss.backward()", "backward needs it here"),
        ),
        notes=("exp keeps its result, because it computes the gradient of `self` as `grad * result`.",),
        helps=("make a new tensor instead\n-y += 1\n+y = y + 1",),
    )
    assert (
        show(story)
        == """\
error[GM101]: `y` was overwritten after exp had kept it
  --> train.py:4:1
   |
 2 | y = x.exp()
   |     ------- exp kept its result here
 3 | z = 1
 4 | y += 1
   | ^^^^^^ overwritten here, by add_
...
10 | loss.backward()
   | --------------- backward needs it here
   |
   = note: exp keeps its result, because it computes the gradient of `self` as
           `grad * result`.
   = help: make a new tensor instead
           -y += 1
           +y = y + 1"""
    )


def test_several_files_and_functions(program: Path) -> None:
    model = program.with_name("model.py")
    program.write_text("\n\nloss.backward()\n")
    model.write_text("def forward(self, x):\n    self.buffer[0] = x\n")
    story = Story(
        "error",
        "GM103",
        "overwritten",
        (
            span(program, 3, "loss.backward()", "needed here"),
            span(model, 2, "self.buffer[0]", "written here", primary=True, function="forward"),
        ),
    )
    assert (
        show(story)
        == """\
error[GM103]: overwritten
  --> model.py:2:5 in forward
   |
 2 |     self.buffer[0] = x
   |     ^^^^^^^^^^^^^^ written here
   |
  ::: train.py:3:1
   |
 3 | loss.backward()
   | --------------- needed here"""
    )


def test_two_marks_on_one_line_and_a_tab(program: Path) -> None:
    program.write_text("if x:\n\th = h.mul_(h.exp())\n")
    story = Story(
        "warning",
        "GM101",
        "both on one line",
        (
            span(program, 2, "h.exp()", "kept here"),
            span(program, 2, "h.mul_(h.exp())", "written here", primary=True),
        ),
    )
    assert (
        show(story)
        == """\
warning[GM101]: both on one line
  --> train.py:2:6
   |
 2 |     h = h.mul_(h.exp())
   |         ^^^^^^^^^^^^^^^ written here
   |                ------- kept here"""
    )


def test_wide_characters_are_two_columns(program: Path) -> None:
    program.write_text('y = f("日本語", x.exp_())\n', encoding="utf-8")
    story = Story("error", "GM101", "wide", (span(program, 1, "x.exp_()", "here", primary=True),))
    lines = show(story).splitlines()
    assert lines[1] == "  --> train.py:1:14"
    before = lines[3][: lines[3].index("x.exp_()")]
    assert width_of(before) == lines[4].index("^")
    assert lines[4].endswith("^^^^^^^^ here")


def test_an_expression_over_several_lines(program: Path) -> None:
    program.write_text("y = torch.cat([\n    a,\n    b,\n])\n")
    frame = Frame(str(program), 1, "<module>", "user", 4, 4, 2)
    assert (
        show(Story("error", "GM102", "long", (Span(frame, "kept here", True),)))
        == """\
error[GM102]: long
  --> train.py:1:5
   |
 1 | y = torch.cat([
   |     ^^^^^^^^^^^
 2 |     a,
   |     ^^
 3 |     b,
   |     ^^
 4 | ])
   | ^^ kept here"""
    )


def test_a_very_long_expression_is_cut_in_the_middle(program: Path) -> None:
    program.write_text("y = f(\n" + "".join(f"    a{i},\n" for i in range(50)) + ")\n")
    frame = Frame(str(program), 1, "<module>", "user", 4, 52, 1)
    text = show(Story("error", "GM102", "long", (Span(frame, "kept here", True),)))
    assert "..." in text and len(text.splitlines()) < 20
    assert text.endswith("^ kept here")


def test_without_source_the_place_is_still_named() -> None:
    story = Story(
        "error",
        "GM110",
        "gone",
        (
            Span(Frame("<string>", 3, "f"), "written here", True),
            Span(Frame("<string>", 9, "g"), "needed here"),
        ),
        helps=("clone it",),
    )
    assert (
        show(story)
        == """\
error[GM110]: gone
  --> <string>:3 in f
   = written here
   = <string>:9 in g: needed here
   |
   = help: clone it"""
    )


def test_no_columns_marks_the_whole_line(program: Path) -> None:
    program.write_text("    y += 1   \n")
    assert show(Story("error", "GM101", "m", (Span(Frame(str(program), 1, "f"), "here", True),))).endswith(
        " 1 |     y += 1\n   |     ^^^^^^ here"
    )


def test_columns_of_another_version_of_the_file_do_no_harm(program: Path) -> None:
    program.write_text("y\n")
    frame = Frame(str(program), 1, "f", "user", 40, 1, 60)
    assert " 1 | y\n   | ^ here" in show(Story("error", "GM101", "m", (Span(frame, "here", True),)))


def test_a_long_label_goes_below_and_is_wrapped(program: Path) -> None:
    program.write_text("y = x.exp()\n")
    label = "exp kept its result here, in the first of 400 rounds of the loop that begins on line 12"
    text = show(Story("error", "GM101", "m", (span(program, 1, "x.exp()", label, primary=True),)), width=60)
    assert text.endswith("""\
   |     ^^^^^^^
   |     exp kept its result here, in the first of 400
   |     rounds of the loop that begins on line 12""")


def test_a_long_line_is_cut_around_its_mark(program: Path) -> None:
    program.write_text("y = " + "a + " * 60 + "x.exp_()" + " + b" * 60 + "\n")
    text = show(Story("error", "GM101", "m", (span(program, 1, "x.exp_()", "here", primary=True),)))
    line, marks = text.splitlines()[-2:]
    assert "…" in line and len(line) <= 80
    assert line[marks.index("^") : marks.rindex("^") + 1] == "x.exp_()"


def test_colour_adds_nothing_but_colour(program: Path) -> None:
    program.write_text("y += 1\n")
    story = Story(
        "error", "GM101", "m" * 90, (span(program, 1, "y += 1", "here", primary=True),), ("n",), ("h",)
    )
    coloured = render(story, colour=True, width=80)
    assert "\x1b[1;31m^^^^^^ here\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render(story, colour=False, width=80)
    assert "\x1b" not in render(story, colour=False, width=80)


def test_escapes_in_the_source_do_not_reach_the_terminal(program: Path) -> None:
    program.write_text('y = "\x1b[2J" + x\n')
    text = show(Story("error", "GM101", "m", (Span(Frame(str(program), 1, "f"), "here", True),)))
    assert "\x1b" not in text


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=60)


@given(
    source=st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=120), max_size=6),
    places=st.lists(
        st.tuples(st.integers(1, 8), st.none() | st.integers(0, 200), st.integers(0, 3), st.integers(0, 200), st.booleans()),
        max_size=4,
    ),
    label=WORDS,
    width=st.integers(1, 120),
)  # fmt: skip
def test_any_story_can_be_told(
    tmp_path_factory: pytest.TempPathFactory,
    source: list[str],
    places: list[tuple[int, int | None, int, int, bool]],
    label: str,
    width: int,
) -> None:
    file = tmp_path_factory.mktemp("any") / "p.py"
    file.write_text("\n".join(source), encoding="utf-8", newline="")
    spans = tuple(
        Span(Frame(str(file), line, "f", "user", col, line + more, end), label, primary)
        for line, col, more, end, primary in places
    )
    text = render(Story("error", "GM101", label, spans, (label,), (label,)), colour=False, width=width)
    assert text.startswith("error[GM101]:")
    if spans:
        assert f"{spans[0].frame.file}:" in text or "p.py:" in text
