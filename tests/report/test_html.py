"""The HTML page: whole, self-contained, and nothing from the program gets in as markup."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradmend.model import (
    Conflict,
    Culprit,
    Event,
    Fix,
    Frame,
    History,
    Lane,
    Node,
    Save,
    Session,
    Site,
    TensorInfo,
    Write,
)
from gradmend.report.html import render
from gradmend.report.saved import from_json

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
    return json.loads(
        json.dumps(
            Session(
                "healed", [conflict], error, {"saves": 12}, {"command": "gradmend run train.py"}
            ).as_json()
        )
    )


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Any]:
    return session(tmp_path / "train.py")


def test_everything_is_told(made: dict[str, Any]) -> None:
    page = Page(render(made))
    for words in (
        "Fix proven",
        "GM101",
        "y was overwritten & lost",
        "PyTorch says nothing, and computes with the changed value",
        "2 times",
        "12 bytes kept to heal it",
        "written by add_, 4 times, unseen by PyTorch (y: float32[3])",
        "saved by exp as its result (y: float32[3])",
        "read by backward",
        "y += '<b>'",
        "exp keeps its result.",
        "in round 3 of the loop on line 1",
        "Make a new tensor",
        "proven",
        "+y = y + '<b>'",
        "RuntimeError: one of <them>",
        "File <x>",
        "saves",
        "gradmend run train.py",
    ):
        assert words in page.text, words
    marked = [attrs["class"] for tag, attrs in page.tags if tag == "mark"]
    assert marked == ["save", "write", "read"], "one excerpt, each line once"
    assert page.text.index("saved by") < page.text.index("written by") < page.text.index("read by backward")


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
    assert "url(" not in html and "@import" not in html and "http:" not in html and "https:" not in html
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html


def test_a_clean_session() -> None:
    page = Page(render(Session().as_json()))
    assert "Clean" in page.text and "No value that backward needed was overwritten." in page.text


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


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
                    "history": {
                        "nbytes": 8, "lanes": [[0, 8, {"shape": [2], "dtype": op, "name": message}]], "left_out": 0,
                        "events": [[rule, 1, 0, 0, op, True, message, False, None]], "places": [[op, 1, message]],
                        "changed": [], "views": notes, "graph": [[op, 0, 0], [message, 1, None]],
                    },
                    "backward": None,
                    "fixes": [{"title": message, "diff": message, "status": op}],
                }
            ],
            "error": {"type": op, "message": message, "traceback": message},
            "run": {rule: message, "program": op},
        }
    )  # fmt: skip
    assert {tag for tag, _ in Page(html).tags} <= ALLOWED
    assert not any(key.startswith("on") for _, attrs in Page(html).tags for key in attrs)


ALLOWED = set(
    "html head meta title style body header main footer nav ol ul li a code p h1 h2 h3 div small article section pre "
    "mark span i b em ins del details summary table tr th td figure figcaption br".split()
)


def history() -> History:
    lanes = (
        Lane(0, 64, TensorInfo((16,), "float32", "h")),
        Lane(16, 32, TensorInfo((4,), "float32", "h[4:8]")),
    )
    events = (
        Event("save", 3, 0, 0, "", True, 0, False, (0.0, 1.0)),
        Event("write", 4, 1, 1, "__iadd__", True, 1, False, (0.0, 7.25)),
        Event("write", 5, 1, 1, "add_", False, None, True),
        Event("read", 9, 0, 2, "backward", True, 1, False, (0.0, 7.25)),
    )
    places = (("train.py", 2, "f"), ("train.py", 3, "f"), ("train.py", 5, "<module>"))
    graph = (Node("SumBackward0", -1), Node("ExpBackward0", 0, 0), Node("torch::autograd::AccumulateGrad", 1))
    return History(
        64, lanes, events, places, ((16, 32),), 7, ("base: float32[4, 4]", "select", "h: ..."), graph
    )


def test_the_history_is_drawn() -> None:
    conflict = Conflict("GM101", "error", "`h` changed", history=history())
    page = Page(render(json.loads(json.dumps(Session("conflict", [conflict]).as_json()))))
    dots = [attrs for _, attrs in page.tags if "dot" in str(attrs.get("class", "")).split()]
    assert len(dots) == 4 and all(d["tabindex"] == "0" and d["aria-label"] for d in dots)
    told = [str(d["aria-label"]) for d in dots]
    assert "saved · train.py:2 in f · version 0 · values 0 to 1" in told
    assert "written by += · train.py:3 in f · version 1 · values 0 to 7.25" in told
    assert "written by add_ · train.py:3 in f · version not moved" in told
    assert any("left:25.000%;width:max(2px,25.000%)" in str(attrs.get("style")) for _, attrs in page.tags)
    for words in (
        "64 bytes",
        "bytes 16 to 32",
        "7 events in between left out",
        "select",
        "ExpBackward0",
        "AccumulateGrad",
    ):
        assert words in page.text


def test_a_session_comes_back_from_its_json() -> None:
    session = Session("conflict", [Conflict("GM101", "error", "x", history=history())], run={"command": "c"})
    data = json.loads(json.dumps(session.as_json()))
    assert from_json(data) == session
    data["conflicts"][0]["history"]["events"] = [["save"]]
    assert "What happened" not in render(data), "a damaged history is left out"


def test_ten_thousand_events_are_few_marks() -> None:
    one = history()
    events = tuple(Event("write", n, n % 2, 1, "add_") for n in range(10_000))
    session = Session("conflict", [Conflict("GM101", "error", "x", history=replace(one, events=events))])
    page = Page(render(session.as_json()))
    dots = [
        str(attrs["aria-label"]) for _, attrs in page.tags if "dot" in str(attrs.get("class", "")).split()
    ]
    assert 100 < len(dots) < 400
    assert sum(int(label.split(" event")[0]) for label in dots) == 10_000


def test_an_edit_comes_before_its_use(tmp_path: Path) -> None:
    made = session(tmp_path / "train.py")
    made["conflicts"][0]["rule"] = "GM210"
    text = Page(render(made)).text
    assert "saved by" not in text, "pow keeps nothing there: it uses the value again"
    assert (
        text.index("written by add_") < text.index("exp uses it again here") < text.index("read by backward")
    )
