"""PyTorch's own tests as an oracle: a file of them, plain, under watch(), under heal() and with install(), compared.

    python tools/autograd_ways.py PATH/TO/pytorch/test/test_autograd.py [-k EXPRESSION]

The file is not in the wheel: take it from the source of the torch that is installed. Each way runs in a pytest of its own.
Prints the tests that end otherwise than under plain PyTorch, with why; exit code 1 if there are any.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path
from typing import Any

WAYS = ("plain", "watch", "heal", "install")
_WAY = "GRADMEND_TEST_WAY"
_LONGEST = 160


def pytest_configure(config: Any) -> None:
    """This file is also the plugin of those pytests."""
    if os.environ.get(_WAY) == "install":
        import gradmend

        gradmend.install()


def pytest_runtest_call(item: Any) -> None:
    way = os.environ.get(_WAY)
    if way in ("watch", "heal"):
        from gradmend.api.watching import Watching

        policy: Any = way
        plain = item.runtest

        def scoped() -> None:
            with Watching(policy, aloud=False):
                plain()

        item.runtest = scoped


def outcomes(file: Path, way: str, words: list[str]) -> dict[str, tuple[str, str]]:
    """Each test, with how it ended and the last line of why."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.xml")
        start = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", Path(__file__).stem]
        path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, _WAY: way, "PYTHONPATH": path}
        done = subprocess.run(
            [*start, f"--junitxml={out}", *words, file.name],
            cwd=file.parent,
            env=env,
            capture_output=True,
            text=True,
        )
        if not out.exists():
            sys.exit(f"{way}: pytest could not run {file}:\n{(done.stdout + done.stderr)[-2000:]}")
        return dict(_ended(case) for case in xml.parse(out).iter("testcase"))


def _ended(case: xml.Element) -> tuple[str, tuple[str, str]]:
    name = f"{case.get('classname', '')}::{case.get('name', '')}"
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            said = " ".join((found.get("message") or "").split())
            return name, ("failed" if kind != "skipped" else kind, said[:_LONGEST])
    return name, ("passed", "")


def differing(
    plain: dict[str, tuple[str, str]], other: dict[str, tuple[str, str]]
) -> list[tuple[str, str, str, str]]:
    """Tests that end otherwise: name, how under plain PyTorch, how here, why."""
    gone = ("did not run", "")
    every = sorted({*plain, *other})
    pairs = [(name, plain.get(name, gone), other.get(name, gone)) for name in every]
    return [(name, a[0], b[0], b[1] or a[1]) for name, a, b in pairs if a[0] != b[0]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("-k", dest="only", help="as pytest's -k")
    args = parser.parse_args()
    if not args.file.is_file():
        parser.error(f"there is no file {args.file}: give the test_autograd.py of your torch's source")
    words = ["-k", args.only] if args.only else []
    file = args.file.resolve()
    plain = outcomes(file, "plain", words)
    print(f"plain: {_counted(plain)}", flush=True)
    wrong = 0
    for way in WAYS[1:]:
        found = outcomes(file, way, words)
        rows = differing(plain, found)
        wrong += len(rows)
        print(f"{way}: {_counted(found)}; {len(rows)} end otherwise than plain", flush=True)
        for name, before, after, why in rows:
            print(f"  {name}: {before} -> {after}: {why}")
    return int(wrong > 0)


def _counted(found: dict[str, tuple[str, str]]) -> str:
    return ", ".join(f"{n} {how}" for how, n in sorted(Counter(how for how, _ in found.values()).items()))


if __name__ == "__main__":
    sys.exit(main())
