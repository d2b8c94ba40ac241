"""What the sparse examples share: a progress bar that shows the loss, and curves written as a picture (SVG)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

COLOURS = ("#1b6ca8", "#c8553d", "#4b8f29", "#7a4fa3")


def steps(count: int, say: Callable[[], str]) -> Iterator[int]:
    """0 to count - 1, with a bar that shows what `say` returns."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[said]}"))
    with Progress(*columns) as bar:
        task = bar.add_task("", total=count, said="")
        for i in range(count):
            yield i
            bar.update(task, advance=1, said=say())


def draw(path: Path, title: str, curves: dict[str, list[float]], below: str = "step") -> None:
    """Curves over their numbers, as SVG."""
    wide, high, left, top = 640, 360, 60, 40
    every = [y for curve in curves.values() for y in curve]
    low, span = min(every), (max(every) - min(every)) or 1.0
    parts = [f'<text x="{left}" y="24" font-size="16">{title}</text>']
    for i in range(5):
        y = top + high * i / 4
        parts.append(f'<line x1="{left}" x2="{left + wide}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{low + span * (1 - i / 4):.3g}</text>'
        )
    for n, (name, curve) in enumerate(curves.items()):
        colour, last = COLOURS[n % len(COLOURS)], max(len(curve) - 1, 1)
        points = " ".join(
            f"{left + wide * i / last:.1f},{top + high * (1 - (y - low) / span):.1f}"
            for i, y in enumerate(curve)
        )
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>')
        parts.append(
            f'<text x="{left + wide - 8}" y="{top + 18 + 16 * n}" text-anchor="end" fill="{colour}">{name}</text>'
        )
    parts.append(f'<text x="{left + wide / 2}" y="{top + high + 28}" text-anchor="middle">{below}</text>')
    size = f'width="{left + wide + 20}" height="{top + high + 40}"'
    body = "\n".join(parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )
    print(f"the curve is in {path}")


def options(about: str | None, name: str, count: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=count)
    parser.add_argument("--out", type=Path, default=Path("build") / f"{name}.svg")
    return parser
