"""The HTML page as a person meets it: in a real browser, from a file, on a desk and on a phone, by day and by night."""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import browser as browsers

from gradmend.report.html import render

pytestmark = pytest.mark.skipif(browsers.found() is None, reason="no chromium")

PROGRAM = """\
import torch


def step(k, x):
    z = (x.exp() * (k + 1)).tanh()
    z += 1  # {words}
    return z.sum()


x = torch.ones(4, requires_grad=True)
total = sum(step(k, x) for k in range(3))
s = x.sigmoid()
s.mul_(2)
q = x.sqrt()
q[0] = 5.0
(total + s.sum() + q.sum()).backward()
"""
PLAIN = """\
import torch

x = torch.ones(6, 4, requires_grad=True)
h = (x * 2).sigmoid()
h[1:3] += 1
h.pow(2).sum().backward()
"""
EVIL = "</pre></style></title><script>document.title='got in'</script><img src=x onerror=alert(1)>\"'`&\u202e"


def busy(session: dict[str, Any]) -> dict[str, Any]:
    """10,000 events of 40 views."""
    made: dict[str, Any] = json.loads(json.dumps(session))
    conflict = made["conflicts"][0]
    del made["conflicts"][1:]
    history = conflict["history"]
    history["nbytes"] = 4000
    history["lanes"] = [
        [k * 100, k * 100 + 100, {"shape": [25], "dtype": "float32", "name": f"h[{k}]"}] for k in range(40)
    ]
    history["events"] = [
        ["write" if n % 3 else "save", n, n % 40, 0, "add_", n % 997 == 0, n, False, [0.0, n / 7]]
        for n in range(10_000)
    ]
    return made


def hostile(session: dict[str, Any]) -> Any:
    """Every string in it is an attack."""

    def spoil(part: Any, key: str = "") -> Any:
        if isinstance(part, dict):
            return {k: spoil(v, k) for k, v in part.items()}
        if isinstance(part, list):
            return [spoil(v, key) for v in part]
        return EVIL + part if isinstance(part, str) and key not in ("outcome", "status", "kind") else part

    return spoil(session)


LONG = "a_directory_whose_name_has_no_end/another_directory_whose_name_has_no_end_either"

# Words that can be seen, with their contrast to what lies behind them (WCAG 2, relative luminance).
FAINT = """(() => {
  const light = c => { const v = c.match(/[\\d.]+/g).map(Number), f = x => { x /= 255;
    return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(v[0]) + 0.7152 * f(v[1]) + 0.0722 * f(v[2]); };
  const behind = e => { for (; e; e = e.parentElement) { const b = getComputedStyle(e).backgroundColor;
    if (b !== 'rgba(0, 0, 0, 0)') return b; } return 'rgb(255, 255, 255)'; };
  const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  for (let n; n = walk.nextNode();) { const e = n.parentElement;
    if (!n.textContent.trim() || !e.checkVisibility()) continue;
    seen++;
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push([ratio.toFixed(2), e.tagName, n.textContent.slice(0, 40)]); }
  return {seen, found}; })()"""

# Boxes that reach beyond the window, unless something inside the window scrolls them.
CUT = """[...document.body.querySelectorAll('*')].filter(e => e.checkVisibility()
  && e.getBoundingClientRect().right > innerWidth + 1
  && !e.closest('pre')).map(e => e.tagName + ': ' + e.textContent.slice(0, 40))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browsers.Browser]:
    with browsers.running(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of real runs: healed, stopped, clean, failed, of two ranks; and one with a proven fix."""
    home = tmp_path_factory.mktemp("runs")
    deep = home / LONG
    deep.mkdir(parents=True)
    program = deep / "train_with_a_name_that_no_telephone_is_wide_enough_for.py"
    program.write_text(PROGRAM.format(words="words without end " * 12))
    (home / "clean.py").write_text("import torch\ntorch.ones(2, requires_grad=True).exp().sum().backward()\n")
    (home / "failed.py").write_text(f"raise ValueError('no <b>column</b> in {'/data' * 40}')\n")

    def gradmend(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "gradmend", *words], cwd=home, capture_output=True, timeout=300)

    gradmend("run", "--heal", "--html", "healed.html", "--report", "out.rank0.json", str(program))
    gradmend("run", "--html", "stopped.html", str(program))
    gradmend("run", "--html", "clean.html", "--report", "out.rank1.json", "clean.py")
    gradmend("run", "--html", "failed.html", "failed.py")
    session = json.loads((home / "out.rank0.json").read_text())
    diff = "--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-z += 1\n+z = z + 1"
    session["conflicts"][0]["fixes"] = [
        {"title": "rebind `z`", "diff": diff, "status": "proven", "note": "fix: rebind\nproven: equal", "edits": []},
        {"title": "clone", "diff": "", "status": "failed", "note": "TypeError: no", "edits": []},
    ]  # fmt: skip
    (home / "out.rank0.json").write_text(json.dumps(session))
    gradmend("report", "--html", "ranks.html", "out.rank0.json", "out.rank1.json")
    (home / "fixed.py").write_text(PLAIN)
    gradmend("fix", "--html", "fixed.html", "fixed.py")
    (home / "busy.html").write_text(render(busy(session)))
    (home / "hostile.html").write_text(render(hostile(session)))
    return {page.stem: page for page in home.glob("*.html")}


NAMES = ("healed", "stopped", "clean", "failed", "ranks", "fixed", "busy", "hostile")
AXE = Path(os.environ.get("GRADMEND_AXE", "build/axe/node_modules/axe-core")) / "axe.min.js"


@pytest.mark.parametrize("width", [1200, 360, 320])
@pytest.mark.parametrize("name", NAMES)
def test_every_page_fits_and_asks_for_nothing(
    name: str, width: int, pages: dict[str, Path], browser: browsers.Browser
) -> None:
    url = pages[name].as_uri()
    browser.open(url, width)
    assert browser.js("innerWidth") == width, "a wider page makes a phone zoom out"
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.js(CUT) == []
    assert browser.requests == [url]
    assert browser.complaints == []
    assert browser.js("document.querySelector('h1').checkVisibility()")
    assert len(browser.js("document.body.innerText")) > 50


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_every_word_can_be_read(
    name: str, scheme: str, pages: dict[str, Path], browser: browsers.Browser
) -> None:
    browser.open(pages[name].as_uri(), scheme=scheme)
    browser.js("document.querySelectorAll('details').forEach(d => d.open = true)")
    answer: dict[str, Any] = browser.js(FAINT)
    assert answer["seen"] >= 3
    assert answer["found"] == []
    paper = browser.js("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) > 380) == (scheme == "light")


def test_the_story_is_seen(pages: dict[str, Path], browser: browsers.Browser) -> None:
    browser.open(pages["healed"].as_uri())
    told = browser.js("document.body.innerText")
    assert "`" not in told and "Overwritten values were put back" in told
    assert browser.js("document.querySelectorAll('article').length") == 3
    # The written line is marked from edge to edge, and stands on one line however long it is.
    marks = browser.js(
        "[...document.querySelectorAll('.source mark')].map(m => ["
        "m.offsetHeight, m.offsetWidth >= m.parentElement.clientWidth - 1, m.textContent])"
    )
    assert any("z += 1" in text for _, _, text in marks)
    assert all(height < 40 and wide for height, wide, _ in marks)


def test_a_fix_is_shown_and_a_rejected_one_folded(pages: dict[str, Path], browser: browsers.Browser) -> None:
    browser.open(pages["ranks"].as_uri())
    told = browser.js("document.body.innerText")
    assert "rank 0 met this, rank 1 did not" in told
    assert "+z = z + 1" in told and "proven: equal" in told and "FIX PROVEN" in told
    assert "tried and rejected: 1" in told and "TypeError" not in told
    colours = browser.js(
        "['ins', 'del', 'span.head'].map(s => getComputedStyle(document.querySelector('.fix ' + s)).backgroundColor)"
    )
    assert len(set(colours)) == 3
    assert browser.js("[...document.querySelectorAll('pre')].every(p => p.textContent.trim())")


def test_the_keyboard_reaches_everything(pages: dict[str, Path], browser: browsers.Browser) -> None:
    browser.open(pages["healed"].as_uri())
    want = browser.js("[...document.querySelectorAll('a, summary')].map(e => e.textContent)")
    met, opened, tips = [], 0, 0
    for _ in range(60):
        browser.press("Tab", 9)
        met.append(browser.js("document.activeElement.textContent"))
        assert browser.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        if browser.js("document.activeElement.tagName") == "SUMMARY" and not opened:
            browser.press("Enter", 13)
            opened += browser.js("document.activeElement.parentElement.open")
        if browser.js("document.activeElement.matches('.dot')"):
            tips += browser.js("document.activeElement.querySelector('.tip').checkVisibility()")
        if tips >= 3 and opened:
            break
    assert opened == 1 and tips >= 3
    assert want[:3] == met[:3], "the list of conflicts comes first"
    browser.js("document.querySelector('nav a').focus()")
    browser.press("Enter", 13)
    assert browser.js("location.hash") == "#c1"


def test_a_picture_of_it(pages: dict[str, Path], browser: browsers.Browser) -> None:
    browser.open(pages["healed"].as_uri(), 900)
    data = browser.picture()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    # A scroll bar takes part of the width.
    assert 860 < width <= 900 and height > 900 and len(data) > 20_000


def test_what_happened_to_the_memory(pages: dict[str, Path], browser: browsers.Browser) -> None:
    browser.open(pages["fixed"].as_uri())
    assert browser.js("document.title") == "Gradmend: fix proven, fixed.py"
    lanes = browser.js(
        "[...document.querySelectorAll('.lane')].map(e => e.querySelector('code').textContent)"
    )
    assert lanes == ["h: float32[6, 4]", "h[1:3]: float32[2, 4]"]
    kinds = "[...document.querySelectorAll('.dot')].map(e => [e.getBoundingClientRect().left, e.className.split(' ')[1]])"
    assert [kind for _, kind in sorted(browser.js(kinds))] == ["save", "write", "write", "read"]
    share = "(e => e.offsetWidth / e.parentElement.offsetWidth)(document.querySelector('.strip .changed'))"
    assert abs(browser.js(share) - 2 / 6) < 0.02, "two rows of six changed"
    label = browser.js("document.querySelector('.dot.write').ariaLabel")
    assert "fixed.py:5" in label and "version 1" in label and "values 0.8808 to 1.881" in label
    assert "trial" not in browser.js("document.body.textContent"), "no names of scratch copies"


def test_a_busy_page_stays_small(pages: dict[str, Path], browser: browsers.Browser) -> None:
    browser.open(pages["busy"].as_uri())
    assert "10,000 events" in browser.js("document.body.innerText")
    assert browser.js("document.querySelectorAll('*').length") < 8000
    assert browser.js("document.querySelectorAll('.lane').length") == 12


def test_hostile_words_stay_words(pages: dict[str, Path], browser: browsers.Browser) -> None:
    browser.open(pages["hostile"].as_uri())
    assert browser.js("document.querySelectorAll('script, img, iframe, object, link').length") == 0
    assert browser.js("document.title").startswith("Gradmend: ")
    assert "<script>" in browser.js("document.body.innerText")
    assert browser.requests == [pages["hostile"].as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing(name: str, scheme: str, pages: dict[str, Path], browser: browsers.Browser) -> None:
    if not AXE.exists():
        pytest.skip("no axe-core: `make axe` gets it from the npm registry")
    browser.open(pages[name].as_uri(), scheme=scheme)
    browser.js("document.querySelectorAll('details').forEach(d => d.open = true)")
    browser.js(AXE.read_text() + "; 0")
    answer = browser.js("axe.run(document, {iframes: false}).then(r => ({passes: r.passes.length,"
                        " found: r.violations.map(v => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 90)])}))")  # fmt: skip
    assert answer["found"] == []
    assert answer["passes"] > 10


def test_it_prints(pages: dict[str, Path], browser: browsers.Browser) -> None:
    browser.open(pages["fixed"].as_uri(), scheme="dark")
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    ink, paper = browser.js(
        "['color', 'backgroundColor'].map(k => getComputedStyle(document.querySelector('article'))[k])"
    )
    assert ink == "rgb(0, 0, 0)" and paper == "rgb(255, 255, 255)"
    assert base64.b64decode(browser.call("Page.printToPDF")["data"]).startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="", features=[])
