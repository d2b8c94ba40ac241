"""Lightning, Hugging Face's Trainer and accelerate themselves: a broken model stops with its story, a healed one trains
to the same weights as one written out of place. `make test-world` has them; elsewhere these tests skip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gradmend import ConflictError
from gradmend.integrations.scopes import TrainingScope

pytestmark = pytest.mark.world

X, Y = torch.randn(32, 4, generator=torch.Generator().manual_seed(1)), torch.ones(32, 1)


class Net(torch.nn.Module):
    def __init__(self, broken: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.broken = broken
        self.inner, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inner(x).sigmoid()
        if self.broken:
            h += 1
        else:
            h = h + 1
        return self.head(h)


def weights(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def broken_line() -> int:
    lines = Path(__file__).read_text().splitlines()
    return lines.index("            h += 1") + 1


def assert_story(error: ConflictError) -> None:
    assert [(Path(c.file).name, c.line) for c in error.conflict.culprits] == [
        ("test_trainers.py", broken_line())
    ]
    assert "h += 1" in str(error)


class TestLightning:
    def fit(self, broken: bool, folder: Path, callbacks: list[Any]) -> torch.Tensor:
        lightning = pytest.importorskip("lightning", reason="no lightning: `make test-world` installs it")

        class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.net = Net(broken)

            def training_step(self, batch: Any, index: int) -> torch.Tensor:
                return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), 0.1)

        module = Module()
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8)
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", callbacks=callbacks, logger=False, default_root_dir=folder,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, data)
        return weights(module)

    def callback(self, *words: Any, **options: Any) -> Any:
        pytest.importorskip("lightning", reason="no lightning: `make test-world` installs it")
        from gradmend.integrations.lightning import GradmendCallback

        return GradmendCallback(*words, **options)

    def test_a_broken_module_stops_with_its_story(self, tmp_path: Path) -> None:
        callback = self.callback(html=str(tmp_path / "out.html"))
        with pytest.raises(ConflictError) as caught:
            self.fit(True, tmp_path, [callback])
        assert_story(caught.value)
        assert callback.session.outcome == "conflict"
        assert "What happened to the memory" in (tmp_path / "out.html").read_text()
        assert torch.Tensor.add_.__class__ is torch.Tensor.sub_.__class__, "nothing stays patched"

    def test_a_healed_one_trains_as_if_written_out_of_place(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        healed = self.fit(True, tmp_path, [self.callback("heal")])
        assert torch.equal(healed, self.fit(False, tmp_path, []))
        assert "gradmend: healed 8 overwritten values" in capsys.readouterr().out

    def test_a_right_one_is_left_alone(self, tmp_path: Path) -> None:
        callback = self.callback()
        assert torch.equal(self.fit(False, tmp_path, [callback]), self.fit(False, tmp_path, []))
        assert callback.session.outcome == "clean" and callback.session.conflicts == []


class TestHuggingFace:
    def trainer(self, broken: bool, folder: Path) -> Any:
        transformers = pytest.importorskip(
            "transformers", reason="no transformers: `make test-world` installs it"
        )
        pytest.importorskip("accelerate", reason="no accelerate: `make test-world` installs it")

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = Net(broken)

            def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
                return {"loss": torch.nn.functional.mse_loss(self.net(x), labels)}

        args = transformers.TrainingArguments(
            output_dir=str(folder), max_steps=4, per_device_train_batch_size=8, report_to=[], save_strategy="no",
            use_cpu=True, disable_tqdm=True, logging_strategy="no", seed=3, optim="sgd", learning_rate=0.1,
        )  # fmt: skip
        data = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]
        return transformers.Trainer(model=Model(), args=args, train_dataset=data)

    def test_a_broken_model_stops_with_its_story(self, tmp_path: Path) -> None:
        from gradmend.integrations.huggingface import watched

        trainer = watched(self.trainer(True, tmp_path), report=str(tmp_path / "out.json"))
        with pytest.raises(ConflictError) as caught:
            trainer.train()
        assert_story(caught.value)
        assert trainer.gradmend_session.outcome == "conflict"
        assert (tmp_path / "out.json").exists()

    def test_a_healed_one_trains_as_if_written_out_of_place(self, tmp_path: Path) -> None:
        from gradmend.integrations.huggingface import watched

        healed, plain = watched(self.trainer(True, tmp_path), policy="heal"), self.trainer(False, tmp_path)
        healed.train()
        plain.train()
        assert torch.equal(weights(healed.model), weights(plain.model))

    def test_a_mixin(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip(
            "transformers", reason="no transformers: `make test-world` installs it"
        )
        from gradmend.integrations.huggingface import GradmendMixin

        class Mine(GradmendMixin, transformers.Trainer):  # type: ignore[misc,name-defined]
            pass

        plain = self.trainer(True, tmp_path)
        mine = Mine(model=plain.model, args=plain.args, train_dataset=plain.train_dataset)
        with pytest.raises(ConflictError):
            mine.train()


class TestAccelerate:
    def run(self, broken: bool, **options: Any) -> torch.Tensor:
        accelerate = pytest.importorskip("accelerate", reason="no accelerate: `make test-world` installs it")
        from gradmend.integrations.accelerate import watching

        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        net = Net(broken)
        model, optimizer, loader = accelerator.prepare(
            net,
            torch.optim.SGD(net.parameters(), 0.1),
            torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8),
        )
        with watching(accelerator, **options):
            for x, y in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
                    optimizer.step()
                    optimizer.zero_grad()
        return weights(net)

    def test_a_broken_model_stops_and_its_backward_is_the_users_line(self) -> None:
        with pytest.raises(ConflictError) as caught:
            self.run(True)
        assert_story(caught.value)
        assert caught.value.conflict.backward is not None
        assert Path(caught.value.conflict.backward.file).name == "test_trainers.py"

    def test_a_healed_one_trains_as_if_written_out_of_place(self) -> None:
        assert torch.equal(self.run(True, policy="heal"), self.run(False))


def test_a_wrong_policy_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="'watch' or 'heal'"):
        TrainingScope("mend")  # type: ignore[arg-type]
