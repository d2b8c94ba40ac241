"""The files of a project: parsed once, found by the names that imports use."""

from __future__ import annotations

import ast
import os
import warnings
from functools import cache, lru_cache
from itertools import takewhile

from gradmend.check.values import Value

# Never the project's own, even where their sources are what is checked.
_OUTSIDE = frozenset(
    {"torch", "numpy", "scipy", "pandas", "os", "sys", "math", "random", "typing", "collections"}
)
_MOST_FILES = 40  # that one file is followed into
_LARGEST = 8_000_000  # bytes of one imported file


class Module:
    """A file, parsed when it is first looked into: most imports never are."""

    __slots__ = ("_project", "_tree", "declared", "env", "file", "main", "package", "stars")

    def __init__(self, file: str, project: Project) -> None:
        self.file = file
        self._project = project
        self._tree: ast.Module | None = None
        self.env: dict[str, Value] = {}
        self.declared = False
        self.main = False
        self.stars: list[Module] = []
        self.package = os.path.dirname(file)

    @property
    def tree(self) -> ast.Module:
        if self._tree is None:
            self._tree = self._project.tree(self.file)
        return self._tree


class Project:
    """What is known of the files around. Trees are shared by all who ask; what they define belongs to one run."""

    def __init__(self, overlay: dict[str, ast.Module] | None = None) -> None:
        self._modules: dict[str, Module] = {}
        self.overlay = overlay or {}  # files as an editor or stdin has them
        self.read: set[str] = set()  # that were parsed
        self.asked: set[str] = set()  # whose content an answer depends on, or that they are not there

    def module(self, file: str) -> Module:
        if file not in self._modules:
            self._modules[file] = Module(file, self)
        return self._modules[file]

    def tree(self, file: str) -> ast.Module:
        if len(self.read) >= _MOST_FILES and file not in self.overlay:
            return ast.Module([], [])
        self.read.add(file)
        self.asked.add(file)
        return self.overlay.get(file) or parsed(file, _stamp(file)) or ast.Module([], [])

    def find(self, importer: Module, name: str, level: int) -> Module | None:
        """The project's file behind `import name` or `from ..name import x`; None for what lies outside."""
        if level == 0 and name.partition(".")[0] in _OUTSIDE:
            return None
        tail = name.replace(".", os.sep) if name else ""
        if level:
            folder = importer.package
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            return self._at(os.path.join(folder, tail) if tail else folder)
        for root in roots(importer.package):
            found = self._at(os.path.join(root, tail))
            if found is not None:
                return found
        return None

    def _at(self, stem: str) -> Module | None:
        file = located(stem)
        # Those looked for before it: once there, the answer is another.
        self.asked.update(takewhile(lambda other: other != file, _candidates(stem)))
        return self.module(file) if file is not None else None


@cache
def located(stem: str) -> str | None:
    return next(filter(os.path.isfile, _candidates(stem)), None)


def _candidates(stem: str) -> tuple[str, str]:
    return f"{stem}.py", os.path.join(stem, "__init__.py")


def look_again() -> None:
    """Files may have come and gone since: asked once a run, and at each change in an editor."""
    for known in (located, roots, _is_project):
        known.cache_clear()


@cache
def roots(folder: str) -> tuple[str, ...]:
    """Where absolute imports are looked up: the file's folder, and the folder that holds its package."""
    found = [folder]
    top = folder
    while os.path.isfile(os.path.join(top, "__init__.py")):
        up = os.path.dirname(top)
        if up == top:
            break
        top = up
    for extra in (top, os.path.join(top, "src"), os.path.dirname(top)):
        # The parent only where it is plainly a project: elsewhere it would be anything.
        if extra not in found and (extra == top or extra.endswith("src") or _is_project(extra)):
            found.append(extra)
    return tuple(found)


@cache
def _is_project(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, f)) for f in ("pyproject.toml", "setup.py", ".git"))


def _stamp(file: str) -> tuple[int, int]:
    try:
        status = os.stat(file)
    except OSError:
        return (0, 0)
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=400)
def parsed(file: str, stamp: tuple[int, int]) -> ast.Module | None:
    """The tree of a file that is imported; None where it can't be read, which is told when the file itself is checked."""
    if stamp[1] > _LARGEST:
        return None
    try:
        with open(file, "rb") as handle:
            return parse(handle.read(), file)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def parse(source: bytes | str, file: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source, file)
