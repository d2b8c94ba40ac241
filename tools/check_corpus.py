"""Runs `gradmend check` over the sources of torch and of ten libraries, and writes docs/check-corpus.md.

python tools/check_corpus.py [--folder DIR] [--only NAME ...]

Sources are installed without their dependencies into the folder; torch is the one of this environment. Which finds are true is
judged by people: the verdicts below go into the table, and a find without one is shown as not judged.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
import time
from importlib import metadata
from pathlib import Path

OUT = Path(__file__).parents[1] / "docs/check-corpus.md"
VERDICTS = Path(__file__).with_name("check_corpus_verdicts.json")
LIBRARIES = {
    "gpytorch": "gpytorch",
    "lightning": "lightning",
    "torch-geometric": "torch_geometric",
    "pyro-ppl": "pyro",
    "timm": "timm",
    "kornia": "kornia",
    "monai": "monai",
    "torchrl": "torchrl",
    "transformers": "transformers",
    "diffusers": "diffusers",
}


def sources(name: str, folder: Path) -> Path:
    home = folder / name
    if not home.exists():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-compile",
            "--target",
            str(home),
            name,
        ]
        subprocess.run(pip, check=True)
    return home / LIBRARIES[name]


def version(home: Path) -> str:
    if home.name == "torch":
        return metadata.version("torch").partition("+")[0]
    return next((p.stem.split("-")[1] for p in home.parent.glob("*.dist-info")), "")


def checked(home: Path) -> tuple[list[dict], int, float]:
    started = time.monotonic()
    words = [
        sys.executable,
        "-m",
        "gradmend",
        "check",
        "--isolated",
        "--no-cache",
        "-q",
        "--output-format",
        "json",
        str(home),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) and "Traceback" in done.stderr:
        raise SystemExit(done.stderr)
    found = [f for f in json.loads(done.stdout) if f["rule"] != "GM000"]
    lines = sum(p.read_bytes().count(b"\n") for p in home.rglob("*.py"))
    return found, lines, time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("build/corpus"))
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    verdicts = json.loads(VERDICTS.read_text()) if VERDICTS.exists() else {}
    rows, finds = [], []
    homes = {name: sources(name, args.folder) for name in LIBRARIES if not args.only or name in args.only}
    if not args.only or "torch" in args.only:
        homes["torch"] = Path(sysconfig.get_paths()["purelib"]) / "torch"
    for name, home in homes.items():
        found, lines, seconds = checked(home)
        errors = [f for f in found if f["severity"] == "error"]
        false = sum((verdicts.get(key(f, home)) or "").startswith("false") for f in errors)
        rows.append(
            (name, version(home), lines, len(errors), false, len(found) - len(errors), lines / seconds)
        )
        finds += [(f, f"{short(f, home)}:{f['line']}", verdicts.get(key(f, home))) for f in found]
        print(
            f"{name}: {lines} lines, {len(errors)} errors, {len(found) - len(errors)} warnings, {lines / seconds:.0f} lines/s",
            flush=True,
        )
        OUT.write_text(
            page(rows, finds), encoding="utf-8"
        )  # after each, so that a stopped run leaves what it saw
    return 0


def key(finding: dict, home: Path) -> str:
    """By what the line says, not by its number: the next release of the library moves it."""
    lines = Path(finding["file"]).read_text(encoding="utf-8", errors="replace").split("\n")
    return f"{short(finding, home)} {finding['rule']}: {lines[finding['line'] - 1].strip()}"


def short(finding: dict, home: Path) -> str:
    return Path(finding["file"]).resolve().relative_to(home.parent.resolve()).as_posix()


def page(rows: list[tuple], finds: list[tuple]) -> str:
    lines = [
        "# The static check on working code",
        "",
        "`make check-corpus` writes this page: what `gradmend check` says of sources that work, as installed from the registry.",
        "Verdicts are by reading the source; warnings depend on what the file does not show (who trains it, in which mode).",
        "",
        "| library | version | lines | errors | of these false | warnings | one warning in |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, version_, count, errors, false, warnings, _ in rows:
        lines.append(
            f"| {name} | {version_} | {count:,} | {errors} | {false} | {warnings} | {f'{count // warnings:,} lines' if warnings else '-'} |"
        )
    total = [sum(row[i] for row in rows) for i in (2, 3, 4, 5)]
    lines.append(
        f"| all | | {total[0]:,} | {total[1]} | {total[2]} | {total[3]} | {f'{total[0] // total[3]:,} lines' if total[3] else '-'} |"
    )
    lines += ["", "## Each finding", "", "| where | rule | severity | verdict |", "|---|---|---|---|"]
    for finding, where, verdict in finds:
        lines.append(f"| {where} | {finding['rule']} | {finding['severity']} | {verdict or 'not judged'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
