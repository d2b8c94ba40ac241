"""Lightning's Trainer: automatic and manual optimisation, accumulation, averaging."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from world_runs import Case, Trained, Training, World, state_of

lightning = pytest.importorskip("lightning")
pytestmark = pytest.mark.world
world = World("lightning")


def _net(inside: int, out: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(inside, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(inplace=True),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(16, out),
    )


class _Told(lightning.LightningModule):
    """Keeps the losses."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[torch.Tensor] = []

    def tell(self, loss: torch.Tensor) -> torch.Tensor:
        self.log("loss", loss)
        self.told.append(loss.detach().clone())
        return loss


class _Classifier(_Told):
    def __init__(self) -> None:
        super().__init__()
        self.net = _net(8, 3)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        return self.tell(F.cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]


class _Gan(_Told):
    """Two optimizers stepped by hand, each after its own backward."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.make, self.judge = _net(4, 8), _net(8, 1)

    def training_step(self, batch: Any, _: int) -> None:
        x, _y = batch
        of_maker, of_judge = self.optimizers()
        z = torch.randn(len(x), 4)
        self.toggle_optimizer(of_maker)
        loss = self.tell(-self.judge(self.make(z)).mean())
        of_maker.zero_grad()
        self.manual_backward(loss)
        of_maker.step()
        self.untoggle_optimizer(of_maker)
        loss = self.tell(
            F.softplus(self.judge(self.make(z).detach())).mean() + F.softplus(-self.judge(x)).mean()
        )
        of_judge.zero_grad()
        self.manual_backward(loss)
        of_judge.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(net.parameters(), lr=1e-2) for net in (self.make, self.judge)]


def _fit(make: Callable[[], _Told], **options: Any) -> Callable[[], Training]:
    def case() -> Training:
        model = make()
        data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randint(3, (32,)))
        loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
        callbacks = [one() for one in options.pop("callbacks", ())]
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=callbacks,
            **options,
        )

        def train() -> Trained:
            trainer.fit(model, loader)
            return Trained(model.told, state_of(model), len(model.told))

        return train

    return case


world.add("Trainer, classifier with schedule", _fit(_Classifier))
world.add(
    "Trainer, clipping and accumulation", _fit(_Classifier, gradient_clip_val=0.5, accumulate_grad_batches=2)
)
world.add("Trainer, bf16 autocast", _fit(_Classifier, precision="bf16-mixed"))
world.add("Trainer, GAN by manual optimisation", _fit(_Gan))


def _averaging() -> Any:
    return lightning.pytorch.callbacks.StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=1)


world.add("Trainer, stochastic weight averaging", lambda: _fit(_Classifier, callbacks=[_averaging])())


@pytest.mark.parametrize("case", world.cases, ids=str)
def test_trains_as_it_does_alone(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
