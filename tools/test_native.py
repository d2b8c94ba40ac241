"""The C of capture/native, compiled with warnings as errors and with sanitizers, under the tests of capture.

    python tools/test_native.py [PYTEST ARGUMENTS...]

The build lies in a scratch copy of src, so that the one in use stays; what Cython made is taken from it. AddressSanitizer must be loaded before Python is, and
sees its objects only where they are malloc's own. Leaks are what tests/capture/native/test_edge_leaks.py looks for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLAGS = "-Wall -Wextra -Werror -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
BUILD = "import hatch_build, sys; hatch_build.build(hatch_build.NATIVE / 'built', tuple(sys.argv[1].split()), hot=False)"


def _library(name: str) -> str:
    command = ["cc", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    # Python loads the C++ library late, and the sanitizer must find what throws before anything does.
    preloaded = [_library(name) for name in ("libasan.so", "libstdc++.so")]
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(ROOT / "src", Path(scratch, "src"), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(ROOT / "hatch_build.py", scratch)
        subprocess.run([sys.executable, "-c", BUILD, FLAGS], cwd=scratch, check=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(scratch, "src")),
            "LD_PRELOAD": " ".join(preloaded),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps much of what it made until the process ends
            "PYTHONMALLOC": "malloc",
            "GRADMEND_PURE": "0",
            "OMP_NUM_THREADS": "1",
        }
        form = [
            sys.executable,
            "-c",
            "from gradmend.capture.native import loading; print(loading.__file__, loading.form())",
        ]
        told = subprocess.run(
            form, cwd=scratch, env=environment, capture_output=True, text=True, check=True
        ).stdout
        if scratch not in told or not told.rstrip().endswith(" compiled"):
            print(f"not what was built here: {told}", file=sys.stderr)
            return 1
        tests = sys.argv[1:] or ["tests/capture"]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "--capture=sys",
            *tests,
        ]  # a sanitizer writes to stderr itself
        return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
