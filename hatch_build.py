"""Build the compiled part where there is a compiler. Where there is none the package is pure Python, and only slower."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME, SOURCES = "gradmend.capture._fast", "src/gradmend/capture/native"


class CompiledPart(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or os.environ.get("GRADMEND_PURE", "0") not in ("", "0"):
            return
        editable = version == "editable"
        into = Path(self.root, "src" if editable else "build/compiled")
        try:
            built = _compile(Path(self.root), into)
        except Exception as error:  # whatever a compiler, its headers or their absence may say
            self.app.display_warning(f"gradmend is installed without its compiled part: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if not editable:
            build_data["force_include"][str(built)] = str(built.relative_to(into))


def _compile(root: Path, into: Path) -> Path:
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    os.chdir(root)
    sources, headers = (sorted(str(p) for p in Path(SOURCES).glob(f"*.{end}")) for end in "ch")
    extension = Extension(NAME, sources, depends=headers)
    command = build_ext(Distribution({"name": "gradmend", "ext_modules": [extension]}))
    with tempfile.TemporaryDirectory() as scratch:
        command.build_lib, command.build_temp = str(into), scratch
        command.ensure_finalized()
        command.run()
    return Path(command.get_ext_fullpath(NAME))
