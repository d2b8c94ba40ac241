"""Denoising and autoencoding networks of diffusers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from world_runs import Case, Trained, Training, World, state_of, training

pytest.importorskip("diffusers")
pytestmark = pytest.mark.world
world = World("diffusers")


@world.case("UNet2DModel, DDPM noise, EMA")
def _unet() -> Training:
    from diffusers import DDPMScheduler, UNet2DModel
    from diffusers.training_utils import EMAModel

    model = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=4,
    )
    scheduler = DDPMScheduler(num_train_timesteps=20)
    average = EMAModel(model.parameters(), decay=0.9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = torch.randn(2, 1, 8, 8)

    def train() -> Trained:
        losses = []
        for _ in range(3):
            noise, t = torch.randn_like(images), torch.randint(0, 20, (2,))
            loss = F.mse_loss(model(scheduler.add_noise(images, noise, t), t).sample, noise)
            loss.backward()
            optimizer.step()
            average.step(model.parameters())
            optimizer.zero_grad()
            losses.append(loss.detach().clone())
        average.copy_to(model.parameters())
        return Trained(losses, state_of(model), 3)

    return train


@world.case("UNet2DConditionModel, checkpointed")
def _conditioned() -> Training:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        cross_attention_dim=12,
        attention_head_dim=4,
    )
    model.enable_gradient_checkpointing()
    x, t, words = torch.randn(2, 4, 8, 8), torch.tensor([1, 5]), torch.randn(2, 3, 12)
    return training(model, lambda: model(x, t, words).sample.square().mean())


@world.case("AutoencoderKL")
def _autoencoder() -> Training:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=2,
        norm_num_groups=4,
        sample_size=16,
    )
    x = torch.randn(2, 3, 16, 16)

    def loss() -> torch.Tensor:
        posterior = model.encode(x).latent_dist
        return F.mse_loss(model.decode(posterior.sample()).sample, x) + 1e-3 * posterior.kl().mean()

    return training(model, loss)


@world.case("VQModel")
def _quantised() -> Training:
    from diffusers import VQModel

    model = VQModel(
        block_out_channels=(8,), latent_channels=4, num_vq_embeddings=16, norm_num_groups=4, sample_size=8
    )
    x = torch.randn(2, 3, 8, 8)

    def loss() -> torch.Tensor:
        out = model(x)
        return F.mse_loss(out.sample, x) + out.commit_loss

    return training(model, loss)


@world.case("DiTTransformer2DModel")
def _dit() -> Training:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=2,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
    )
    x, t, y = torch.randn(2, 2, 8, 8), torch.tensor([1, 5]), torch.tensor([0, 3])
    return training(model, lambda: model(x, timestep=t, class_labels=y).sample.square().mean())


@world.case("SD3Transformer2DModel")
def _sd3() -> Training:
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=8,
        patch_size=1,
        in_channels=2,
        num_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        caption_projection_dim=16,
        pooled_projection_dim=12,
        out_channels=2,
    )
    x, words, pooled, t = (
        torch.randn(1, 2, 8, 8),
        torch.randn(1, 3, 16),
        torch.randn(1, 12),
        torch.tensor([5.0]),
    )
    return training(
        model,
        lambda: (
            model(x, encoder_hidden_states=words, pooled_projections=pooled, timestep=t)
            .sample.square()
            .mean()
        ),
    )


@pytest.mark.parametrize("case", world.cases, ids=str)
def test_trains_as_it_does_alone(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
