"""Gradmend mends PyTorch gradients: it names the write that broke backward, heals it, and proves a fix.

with gradmend.watch():      # stop with the whole story at the first overwritten value that backward needs
with gradmend.heal():       # run on with the right gradient
gradmend.install()          # add the story to PyTorch's own error, at almost no cost
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "BudgetError",
    "Conflict",
    "ConflictError",
    "GradmendError",
    "GradmendWarning",
    "Session",
    "audit",
    "dry_run",
    "explain",
    "heal",
    "install",
    "saves",
    "sparse",
    "uninstall",
    "watch",
]

if TYPE_CHECKING:
    from gradmend import sparse as sparse
    from gradmend.api.auditing import audit as audit
    from gradmend.api.dry import dry_run as dry_run
    from gradmend.api.explaining import explain as explain
    from gradmend.api.installing import install as install
    from gradmend.api.installing import uninstall as uninstall
    from gradmend.api.watching import heal as heal
    from gradmend.api.watching import watch as watch
    from gradmend.errors import BudgetError as BudgetError
    from gradmend.errors import ConflictError as ConflictError
    from gradmend.errors import GradmendError as GradmendError
    from gradmend.errors import GradmendWarning as GradmendWarning
    from gradmend.model import Conflict as Conflict
    from gradmend.model import Session as Session
    from gradmend.story.knowledge import saves as saves

_HOMES = {
    "BudgetError": "gradmend.errors",
    "Conflict": "gradmend.model",
    "ConflictError": "gradmend.errors",
    "GradmendError": "gradmend.errors",
    "GradmendWarning": "gradmend.errors",
    "Session": "gradmend.model",
    "audit": "gradmend.api.auditing",
    "dry_run": "gradmend.api.dry",
    "explain": "gradmend.api.explaining",
    "heal": "gradmend.api.watching",
    "install": "gradmend.api.installing",
    "load_ipython_extension": "gradmend.integrations.ipython",
    "saves": "gradmend.story.knowledge",
    "uninstall": "gradmend.api.installing",
    "unload_ipython_extension": "gradmend.integrations.ipython",
    "watch": "gradmend.api.watching",
}


def __getattr__(name: str) -> Any:
    # Loaded when first used, so that `import gradmend` costs next to nothing.
    from importlib import import_module

    if name == "sparse":
        return import_module("gradmend.sparse")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gradmend' has no attribute {name!r}")

    from gradmend.uncollected import uncollected

    with uncollected():
        if home.startswith("gradmend.api."):
            # First: where GRADMEND=1 is set it arms us as it loads, and needs our modules whole.
            import_module("torch")
        value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
