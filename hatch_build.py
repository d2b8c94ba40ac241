"""Build the compiled part where there is a compiler. Where there is none the package is pure Python, and only slower.

Two kinds of library, all of them or none, in src/gradmend/capture/native/built: the edge, which is C, and the hot modules,
which are the package's own .py files, typed by the .pxd beside them and compiled by Cython. `made_of*.json` says of which
sources they were made: capture/native/loading.py takes no others.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/gradmend/capture/native")
DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,  # `tuple` in Python takes a torch.Size too
    "initializedcheck": False,
}


class CompiledPart(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        os.chdir(self.root)
        built = NATIVE / "built"
        _clear(built)  # of an earlier build: by another compiler, or of other sources
        if os.environ.get("GRADMEND_PURE", "0") not in ("", "0"):
            return
        flags = tuple(os.environ.get("GRADMEND_CFLAGS", "").split())
        try:
            build(built, flags)
        except (Exception, SystemExit) as error:  # whatever a compiler, its headers or their absence may say
            _clear(built)
            if flags:
                raise  # who asks for a compiler's opinion wants to hear it
            self.app.display_warning(f"gradmend is built without its compiled part, pure and slower: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            for path in _of_this_python(built):
                build_data["force_include"][str(path)] = str(path.relative_to("src"))


def build(into: Path, flags: tuple[str, ...] = (), hot: bool = True) -> None:
    """All libraries into a folder. `flags` are for the compiler and the linker, and for C of our own only, which `hot=False` builds alone."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    loading = runpy.run_path(str(NATIVE / "loading.py"))
    sources, headers = (sorted(str(p) for p in NATIVE.glob(f"*.{end}")) for end in "ch")
    with tempfile.TemporaryDirectory() as scratch:
        extensions = [
            Extension(
                loading["EDGE"],
                sources,
                depends=headers,
                extra_compile_args=[*flags],
                extra_link_args=[*flags],
            ),
            *(_hot(loading["HOT"], scratch) if hot else ()),
        ]
        command = build_ext(Distribution({"name": "gradmend", "ext_modules": extensions}))
        command.build_lib, command.build_temp = str(Path(scratch, "lib")), str(Path(scratch, "temp"))
        command.force = True
        command.parallel = os.cpu_count()
        command.ensure_finalized()
        command.run()
        into.mkdir(parents=True, exist_ok=True)
        for extension in extensions:
            made = Path(command.get_ext_fullpath(extension.name))
            shutil.copy2(made, into / f"{extension.name}.{made.name.partition('.')[2]}")
    (into / loading["MADE_OF"].name).write_text(json.dumps(loading["digest"]()))


def _of_this_python(built: Path) -> list[Path]:
    """An editable tree may serve several Pythons, each with libraries of its own."""
    suffix = EXTENSION_SUFFIXES[0]
    return [p for p in built.glob("*") if p.name.endswith((suffix, f"{suffix}.json"))]


def _clear(built: Path) -> None:
    for path in _of_this_python(built):
        path.unlink()


def _hot(names: tuple[str, ...], scratch: str) -> list[Any]:
    from Cython.Build import cythonize
    from setuptools import Extension

    modules = [
        Extension(
            f"gradmend.capture.{name}",
            [f"src/gradmend/capture/{name.replace('.', '/')}.py"],
            # Without debugging symbols: two thirds of the time, a sixth of the bytes.
            extra_compile_args=["-g0"] if os.name == "posix" else [],
        )
        for name in names
    ]
    return list(
        cythonize(
            modules,
            build_dir=scratch,
            include_path=["src"],
            compiler_directives=DIRECTIVES,
            quiet=True,
            force=True,
        )
    )


if __name__ == "__main__":  # for those who work on it: `python hatch_build.py` builds in place
    _clear(NATIVE / "built")
    build(NATIVE / "built")
