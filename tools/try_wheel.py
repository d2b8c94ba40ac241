"""Builds the wheel as a user's pip would, installs it into a clean environment, and tries it there; once with a compiler
and once with none to be found. torch is taken from the environment that runs this.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    for form in ("compiled", "pure"):
        with tempfile.TemporaryDirectory() as scratch:
            _try(form, Path(scratch))


def _try(form: str, scratch: Path) -> None:
    environment = dict(os.environ)
    environment.pop("GRADMEND_PURE", None)
    if form == "pure":
        # As on a machine without one: any name that setuptools may call is no compiler.
        missing = scratch / "no-compiler"
        environment |= dict.fromkeys(("CC", "CXX", "LDSHARED"), str(missing))
    python = [sys.executable, "-m", "pip"]
    quiet = ("--quiet", "--disable-pip-version-check")
    said = subprocess.run(
        [*python, "wheel", "-v", "--disable-pip-version-check", "--no-deps", "--wheel-dir", scratch, ROOT],
        env=environment,
        capture_output=True,
        text=True,
    )
    if said.returncode:
        sys.exit(said.stdout + said.stderr)
    (wheel,) = scratch.glob("*.whl")
    told = [
        line.strip()
        for line in (said.stdout + said.stderr).splitlines()
        if "without its compiled part" in line
    ]
    if (form == "pure") != bool(told):
        sys.exit(f"{form}: the build said {told or 'nothing'}")
    # The packages of the running environment (torch is large) lie under the new one, which has Gradmend alone.
    subprocess.run([sys.executable, "-m", "venv", scratch / "env"], check=True)
    clean = scratch / "env" / "bin" / "python"
    packages = subprocess.run(
        [clean, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    subprocess.run([clean, "-m", "pip", "install", *quiet, "--no-deps", wheel], check=True)
    import torch

    Path(packages, "under.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    subprocess.run([clean, ROOT / "tools" / "smoke.py", f"--{form}"], cwd=scratch, check=True)
    print(f"{wheel.name}: {told[0] if told else 'compiled'}")


if __name__ == "__main__":
    main()
