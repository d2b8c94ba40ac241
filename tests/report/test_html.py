"""The HTML page: whole, self-contained, and nothing from the program gets in as markup."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmend.model import Conflict, Culprit, Fix, Frame, Save, Session, Site, TensorInfo, Write
from gradmend.report.html import render

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Parses strictly: every tag closed in order; keeps text and tags."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def session(program: Path) -> dict[str, Any]:
    program.write_text("x = leaf()\ny = x.exp()\ny += '<b>'\n\nloss.backward()\n")
    at = [Frame(str(program), n, "<module>", "user", 0, n, 6) for n in (2, 3, 5)]
    inside = Frame("/lib/site-packages/torch/nn/functional.py", 10, "relu", "torch")
    conflict = Conflict(
        "GM101",
        "silent",
        "`y` was overwritten & lost",
        (Culprit(str(program), 3, "add_"),),
        Save(Site((at[0],)), "exp", "ExpBackward0", "result", TensorInfo((3,), "float32", "y")),
        (Write(Site((inside, at[1])), "add_", TensorInfo((3,), "float32", "y"), quiet=True, times=4),),
        at[2],
        healed_bytes=12,
        times=2,
        why="exp keeps its result.",
        notes=("in round 3 of the loop on line 1",),
        help=("write it out of place\ny = y + 1",),
        fixes=(Fix("Make a new tensor", "@@ -3 +3 @@\n-y += '<b>'\n+y = y + '<b>'", "proven"),),
    )
    error = {"type": "RuntimeError", "message": "one of <them>", "traceback": "Traceback ...\n  File <x>"}
    return json.loads(json.dumps(Session("healed", [conflict], error, {"saves": 12}).as_json()))


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Any]:
    return session(tmp_path / "train.py")


def test_everything_is_told(made: dict[str, Any]) -> None:
    page = Page(render(made))
    for words in (
        "healed",
        "GM101",
        "y was overwritten & lost",
        "PyTorch says nothing, and the gradient is wrong",
        "2 times",
        "12 bytes kept to heal it",
        "overwritten by add_, 4 times, unseen by PyTorch, y: float32[3]",
        "kept by exp as result, y: float32[3]",
        "needed by this backward",
        "y += '<b>'",
        "exp keeps its result.",
        "in round 3 of the loop on line 1",
        "Make a new tensor",
        "proven",
        "+y = y + '<b>'",
        "RuntimeError: one of <them>",
        "File <x>",
        "saves",
    ):
        assert words in page.text, words
    marked = [i for i, (tag, _) in enumerate(page.tags) if tag == "mark"]
    assert len(marked) == 3


def test_it_needs_nothing_else(made: dict[str, Any]) -> None:
    html = render(made)
    tags = Page(html).tags
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert all(
        value.startswith("#")
        for _, attrs in tags
        for key, value in attrs.items()
        if key in ("src", "href") and value
    )
    assert "url(" not in html and "@import" not in html and "http" not in html
    assert "prefers-color-scheme: dark" in html


def test_a_clean_session() -> None:
    page = Page(render(Session().as_json()))
    assert "clean" in page.text and "No value that backward needed was overwritten." in page.text


def test_source_that_is_gone_is_left_out(made: dict[str, Any], tmp_path: Path) -> None:
    for place in (
        made["conflicts"][0]["saved"],
        *made["conflicts"][0]["writes"],
        made["conflicts"][0]["backward"],
    ):
        place["file"] = str(tmp_path / "gone.py")
    page = Page(render(made))
    assert "gone.py:3" in page.text and not [t for t, _ in page.tags if t == "mark"]


TEXT = st.text() | st.sampled_from(["</pre><script>alert(1)</script>", '"><img src=x>', "&lt;", "\x1b[31m"])


@given(TEXT, TEXT, TEXT, st.lists(TEXT, max_size=2))
def test_text_stays_text(rule: str, message: str, op: str, notes: list[str]) -> None:
    html = render(
        {
            "outcome": "conflict",
            "conflicts": [
                {
                    "rule": rule, "kind": rule, "message": message, "notes": notes, "help": notes, "why": op,
                    "writes": [{"file": op, "line": 1, "function": message, "op": op, "stack": [{"file": op, "line": 1, "function": op, "owner": op}] * 2}],
                    "saved": {"file": op, "line": 2, "function": op, "op": op, "slot": op, "tensor": op},
                    "backward": None,
                    "fixes": [{"title": message, "diff": message, "status": op}],
                }
            ],
            "error": {"type": op, "message": message, "traceback": message},
        }
    )  # fmt: skip
    allowed = {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "main",
        "nav",
        "ol",
        "li",
        "a",
        "code",
        "p",
        "h1",
        "h2",
    }
    allowed |= {
        "h3",
        "div",
        "small",
        "article",
        "section",
        "pre",
        "mark",
        "span",
        "i",
        "b",
        "ins",
        "del",
        "details",
        "summary",
        "table",
    }
    assert {tag for tag, _ in Page(html).tags} <= allowed
