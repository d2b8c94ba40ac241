"""A scratch copy of the source tree: the files to edit are real, everything else is a link."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path


class Scratch:
    """Mirrors the directory of the script (and the working directory, when the script lies below it)."""

    def __init__(self, script: Path, cwd: Path) -> None:
        self.script = Path(os.path.abspath(script))
        self.cwd = Path(os.path.realpath(cwd))
        home = Path(os.path.realpath(self.script.parent))
        self.script = home / self.script.name
        self.root = self.cwd if home.is_relative_to(self.cwd) else home
        self.top = Path(os.path.realpath(tempfile.mkdtemp(prefix="gradmend-fix-")))
        self.copies = 0

    def mirror(self, sources: Mapping[str, bytes]) -> Path:
        """A fresh mirror of the tree in which these files (by their real path) have this content."""
        self.copies += 1
        tree = self.top / f"trial{self.copies}"
        tree.mkdir()
        real = [Path(f) for f in sources]
        opened = {self.root}
        for file in [*real, self.script]:
            opened.update(p for p in file.parents if p.is_relative_to(self.root))
        for folder in sorted(opened, key=lambda p: len(p.parts)):
            here = tree / folder.relative_to(self.root)
            if here.is_symlink():
                here.unlink()
            here.mkdir(exist_ok=True)
            for entry in os.scandir(folder):
                if entry.name == "__pycache__" or os.path.realpath(entry.path) == str(self.top):
                    continue
                spot = here / entry.name
                if not spot.exists() and not spot.is_symlink():
                    spot.symlink_to(entry.path)
        for name, content in sources.items():
            spot = tree / Path(name).relative_to(self.root)
            spot.unlink(missing_ok=True)
            spot.write_bytes(content)
        script = tree / self.script.relative_to(self.root)
        if script.is_symlink():
            script.unlink()
            shutil.copy2(self.script, script)
        return tree

    def editable(self, file: str) -> bool:
        return Path(file).is_relative_to(self.root)

    def inside(self, tree: Path, file: str | Path) -> str:
        return str(tree / Path(file).relative_to(self.root))

    def real(self, tree: Path, file: str) -> str:
        """A file of the mirror, as the user knows it."""
        path = Path(file)
        if path.is_relative_to(self.top):  # of this copy, or of the one that the run began in
            return str(self.root.joinpath(*path.relative_to(self.top).parts[1:]))
        return os.path.realpath(file)

    def drop(self, tree: Path) -> None:
        shutil.rmtree(tree, ignore_errors=True)

    def close(self) -> None:
        shutil.rmtree(self.top, ignore_errors=True)


def user_files(files: Iterable[str]) -> list[str]:
    """Leave out what was installed: a fix never edits site-packages."""
    installed = ("site-packages", "dist-packages")
    return [f for f in files if not any(part in installed for part in Path(f).parts)]
