"""docs/images/story.svg, docs/report.html and, where there is a chromium, docs/images/timeline.png: from real runs."""

from __future__ import annotations

import base64
import io
import shutil
import sys
import tempfile
from pathlib import Path

from common import DOCS, ROOT, gradmend

sys.path.insert(0, str(ROOT / "tests" / "report"))


def main() -> None:
    (DOCS / "images").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        shutil.copy(DOCS / "samples" / "train.py", home)
        gradmend("run", "--report", "out.json", "train.py", folder=home)
        story(home / "out.json", home)
        gradmend("fix", "--html", "report.html", "train.py", folder=home)
        page = (home / "report.html").read_text(encoding="utf-8").replace(f"{home}/", "")
        (DOCS / "report.html").write_text(page, encoding="utf-8")
        shutil.copy(DOCS / "samples" / "rows.py", home)
        gradmend("run", "--html", "rows.html", "rows.py", folder=home)
        timeline(home / "rows.html")


def story(report: Path, home: Path) -> None:
    import os

    from rich.console import Console
    from rich.text import Text

    from gradmend.api.watching import words_of
    from gradmend.report.saved import read

    os.chdir(home)
    sys.modules["__main__"].__file__ = str(home / "train.py")  # the story names the program that runs
    words = words_of(read(str(report)).conflicts[0], colour=True, width=92)
    os.chdir(ROOT)
    console = Console(record=True, width=94, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi("\x1b[1;32m$ gradmend run train.py\x1b[0m\n" + words))
    svg = console.export_svg(title="gradmend", unique_id="gradmend")
    # The font is named, not fetched: a README's picture may load nothing.
    svg = "\n".join(line for line in svg.splitlines() if 'url("http' not in line and "url('http" not in line)
    (DOCS / "images" / "story.svg").write_text(svg + "\n", encoding="utf-8")
    print("story.svg", len(svg))


def timeline(page: Path) -> None:
    import browser

    if browser.found() is None:
        print("no chromium: timeline.png stays as it is")
        return
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        browser.running(Path(profile)) as tab,
    ):
        tab.open(page.as_uri(), 900)
        box = tab.js("(r => ({x: r.x + scrollX - 8, y: r.y + scrollY - 8, width: r.width + 16, height: r.height + 16, scale: 1}))"
                     "(document.querySelector('.clock').getBoundingClientRect())")  # fmt: skip
        shot = tab.call("Page.captureScreenshot", format="png", clip=box, captureBeyondViewport=True)
    (DOCS / "images" / "timeline.png").write_bytes(base64.b64decode(shot["data"]))
    print("timeline.png")


if __name__ == "__main__":
    main()
