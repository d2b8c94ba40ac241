"""Imported by gradmend-arm.pth when GRADMEND is set: arms the recorder as soon as the program imports torch.

Importing torch here would tax every Python process of that environment, so an import hook waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _AfterTorch(MetaPathFinder):
    """Finds torch as usual, and arms once its module has run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        sys.meta_path.remove(self)
        _wrap(spec.loader)
        return spec


def _wrap(loader: Loader) -> None:
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        import gradmend

        gradmend.install()

    loader.exec_module = exec_module  # type: ignore[method-assign]


def arm() -> None:
    if "torch" in sys.modules:
        import gradmend

        gradmend.install()
    elif not any(isinstance(finder, _AfterTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())


arm()
