"""Hugging Face: a Trainer whose train() is watched or healed.

    from gradmend.integrations.huggingface import watched

    trainer = watched(Trainer(model=model, args=args, train_dataset=data), html="report.html")
    trainer.train()            # stops with the story at the first value that backward needs and lost

or as a mix-in, for a Trainer class of your own:

    class MyTrainer(GradmendMixin, Trainer):
        gradmend_options = {"policy": "heal"}

Needs nothing of transformers itself: any object with a train() will do.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from gradmend.integrations.scopes import TrainingScope

_T = TypeVar("_T")


class GradmendMixin:
    """Put it before Trainer. `gradmend_options` are those of TrainingScope; `gradmend_session` is what was found."""

    gradmend_options: ClassVar[dict[str, Any]] = {}
    gradmend_session: Any = None

    def train(self, *args: Any, **kwargs: Any) -> Any:
        scope = TrainingScope(**self.gradmend_options)
        with scope as self.gradmend_session:
            result = super().train(*args, **kwargs)  # type: ignore[misc]
        told = scope.summary()
        if told:
            print(told)
        return result


def watched(trainer: _T, **options: Any) -> _T:
    """The same trainer, its class mixed with GradmendMixin. Options: policy, paranoid, budget, report, html."""
    TrainingScope(**options)  # a wrong option is told now, not after an hour of loading
    kind = type(trainer)
    trainer.__class__ = type(f"Watched{kind.__name__}", (GradmendMixin, kind), {"gradmend_options": options})
    return trainer
