"""PyTorch's own tests as an oracle: files of them, plain and under each way that Gradmend changes a program, compared.

    python tools/autograd_ways.py PATH/TO/pytorch/test/test_autograd.py [-k EXPRESSION]
    python tools/autograd_ways.py --way patch PATH/TO/pytorch/test/test_sparse.py

The files are not in the wheel: take them from the source of the torch that is installed. Each way runs in its own pytest.
Prints the tests that end otherwise than under plain PyTorch, with why; exit code 1 if any of them
does not pass.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WAYS = ("watch", "heal", "install")
PATCH = "patch"  # of gradmend.sparse, before the tests are imported
_WAY = "GRADMEND_TEST_WAY"
_LONGEST = 160


def pytest_configure(config: Any) -> None:
    """This file is also the plugin of those pytests."""
    if os.environ.get(_WAY) == "install":
        import gradmend

        gradmend.install()
    elif os.environ.get(_WAY) == PATCH:
        import gradmend.sparse

        gradmend.sparse.patch()


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
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("-k", dest="only", help="as pytest's -k")
    parser.add_argument("--way", dest="ways", action="append", choices=(*WAYS, PATCH), help="one or more")
    args = parser.parse_args()
    for file in args.files:
        if not file.is_file():
            parser.error(f"there is no file {file}: give the {file.name} of your torch's source")
    words = ["-k", args.only] if args.only else []
    return max([compared(file.resolve(), args.ways or WAYS, words) for file in args.files])


def compared(file: Path, ways: Sequence[str], words: list[str]) -> int:
    """Prints how the tests of a file end in each way; 1 if any ends otherwise, except for gains."""
    plain = outcomes(file, "plain", words)
    print(f"{file.name}\nplain: {_counted(plain)}", flush=True)
    wrong = 0
    for way in ways:
        found = outcomes(file, way, words)
        rows = differing(plain, found)
        wrong += sum(after != "passed" for _, _, after, _ in rows)
        print(f"{way}: {_counted(found)}; {len(rows)} end otherwise than plain", flush=True)
        for name, before, after, why in rows:
            print(f"  {name}: {before} -> {after}: {why}")
    return int(wrong > 0)


def _counted(found: dict[str, tuple[str, str]]) -> str:
    return ", ".join(f"{n} {how}" for how, n in sorted(Counter(how for how, _ in found.values()).items()))


if __name__ == "__main__":
    sys.exit(main())
