"""An environment with one release of torch, for `make test-torch TORCH=2.15.0`.

    python tools/torch_env.py 2.15.0 .venv-torch/2.15.0            # PyTorch's wheel, CUDA left out: about 1.2 GB
    python tools/torch_env.py 2.15.0 .venv-torch/2.15.0 --cuda     # with the CUDA libraries it asks for: 5 to 7 GB

The registry's builds of torch are linked against CUDA. The tests run on the CPU and call none of it, so empty libraries
that define the missing names let it load. Needs gcc, nm and readelf; without them the real ones are installed.
Gradmend is installed too, as it lies here, with what its tests need. An environment that has this release already, also one that
another clone made, keeps it: only Gradmend is installed again.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from importlib.metadata import PathDistribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_CUDA = re.compile(r"^(nvidia|cuda|triton|pytorch-triton)\b")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("torch", help="a release, as 2.15.0")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default=sys.executable, help="the interpreter to use")
    parser.add_argument(
        "--cuda", action="store_true", help="install the CUDA libraries instead of empty ones"
    )
    args = parser.parse_args()
    pip = [args.folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not _has(args.folder, args.torch, args.python):
        _make(pip, args)
    # One by one: pip would see that torch lacks its CUDA libraries, and fetch them.
    subprocess.run([*pip, *_ours()], check=True, stderr=subprocess.DEVNULL)
    subprocess.run([*pip, "--no-deps", "--editable", ROOT], check=True)
    subprocess.run([args.folder / "bin" / "python", "-c", _TORCH], check=True)


def _has(folder: Path, release: str, interpreter: str) -> bool:
    """Whether it was made to its end: torch loads there, in this Python."""
    ours = folder / "bin" / "python"
    if not ours.exists() or _said(ours, _PYTHON) != _said(interpreter, _PYTHON):
        return False
    return (_said(ours, _TORCH) or "").partition("+")[0] == release


_PYTHON = "import platform; print(platform.python_version())"
_TORCH = "import torch; print(torch.__version__)"


def _said(interpreter: Path | str, code: str) -> str | None:
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def _make(pip: list[str | Path], args: argparse.Namespace) -> None:
    subprocess.run([args.python, "-m", "venv", "--clear", args.folder], check=True)
    if args.cuda or not all(map(shutil.which, ("gcc", "nm", "readelf"))):
        subprocess.run([*pip, f"torch=={args.torch}"], check=True)
    else:
        subprocess.run([*pip, "--no-deps", f"torch=={args.torch}"], check=True)
        packages = next(args.folder.glob("lib/python3*/site-packages"))
        subprocess.run([*pip, *_needed(packages)], check=True, stderr=subprocess.DEVNULL)
        _fill_in(packages / "torch" / "lib")


def _ours() -> list[str]:
    """What Gradmend and its tests need besides torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return [one for one in wanted if not one.startswith("torch")]


def _needed(packages: Path) -> list[str]:
    """What the installed torch needs besides CUDA."""
    torch = PathDistribution(next(packages.glob("torch-*.dist-info")))
    wanted = []
    for line in torch.requires or ():
        name, _, marker = line.partition(";")
        if "extra" not in marker and not _CUDA.match(name) and "win32" not in marker:
            wanted.append(name.strip())
    return [*wanted, "numpy"]


def _fill_in(folder: Path) -> None:
    """Makes a library for each one that torch is linked against and that is not there."""
    libraries = sorted(folder.glob("*.so*"))
    missing = {name for library in libraries for name in _linked(library) if not _found(folder, name)}
    undefined = {symbol for library in libraries for symbol in _symbols(library, "--undefined-only")}
    defined = {name for library in libraries for name, _ in _symbols(library, "--defined-only")}
    for library in sorted(missing):
        stem = library.removeprefix("lib").split(".so")[0].split("_")[0].lower()
        theirs: dict[str, set[str]] = defaultdict(set)
        for name, version in undefined:
            if name in defined:
                continue
            known = version == library or version.lower() == stem
            if known or (not version and name.lower().startswith(stem)):
                theirs[version].add(name)
        _build(folder / library, theirs)


def _linked(library: Path) -> list[str]:
    text = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(\S+)\]", text)


def _found(folder: Path, name: str) -> bool:
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    return (folder / name).exists() or f"\t{name} " in known or name.startswith("ld-linux")


def _symbols(library: Path, which: str) -> set[tuple[str, str]]:
    text = subprocess.run(
        ["nm", "-D", "--with-symbol-versions", which, library], capture_output=True, text=True
    ).stdout
    words = (line.split()[-1] for line in text.splitlines() if line.strip())
    return {
        (name, version) for name, _, version in (word.replace("@@", "@").partition("@") for word in words)
    }


def _build(path: Path, names: dict[str, set[str]]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        code, versions = Path(scratch, "empty.c"), Path(scratch, "versions")
        code.write_text(
            "".join(
                f"void *{name}(void) {{ return 0; }}\n" for each in names.values() for name in sorted(each)
            )
        )
        lines = [f"{v} {{ {'; '.join(sorted(each))}; }};\n" for v, each in names.items() if v]
        versions.write_text("".join(lines))
        script = [f"-Wl,--version-script={versions}"] if lines else []
        options = ["-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{path.name}", *script]
        subprocess.run(["gcc", *options, "-o", path, code], check=True)


if __name__ == "__main__":
    main()
