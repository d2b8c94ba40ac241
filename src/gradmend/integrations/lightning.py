"""Lightning: `Trainer(callbacks=[GradmendCallback()])` watches the whole fit, or heals it.

from gradmend.integrations.lightning import GradmendCallback

trainer = lightning.Trainer(callbacks=[GradmendCallback(html="report.html")])
trainer.fit(model, data)   # stops with the story at the first value that backward needs and lost
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gradmend.integrations.scopes import Policy, TrainingScope

if TYPE_CHECKING:
    Callback: Any = object
else:
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        try:
            from pytorch_lightning.callbacks import Callback
        except ImportError:
            raise ImportError(
                "gradmend.integrations.lightning needs Lightning: pip install lightning"
            ) from None


class GradmendCallback(Callback):  # type: ignore[misc,unused-ignore]
    """watch() or heal() around fit(). After it, `callback.session` holds what was found."""

    def __init__(
        self,
        policy: Policy = "watch",
        *,
        paranoid: bool = False,
        budget: int | str | None = None,
        report: str | None = None,
        html: str | None = None,
    ) -> None:
        self._scope = TrainingScope(policy, paranoid=paranoid, budget=budget, report=report, html=html)

    @property
    def session(self) -> Any:
        return self._scope.session

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._scope.open()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._scope.close()
        told = self._scope.summary()
        if told and trainer.is_global_zero:
            print(told)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._scope.close(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._scope.close()
