"""Vision, speech and both-at-once models of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_configs import tiny, tokens
from world_runs import Case, Training, World, training

pytest.importorskip("transformers")
pytestmark = pytest.mark.world
world = World("transformers")


def _images(model_type: str, **changes: Any) -> Callable[[], Training]:
    def case() -> Training:
        import transformers

        model = transformers.AutoModelForImageClassification.from_config(
            tiny(model_type, num_labels=3, **changes)
        )
        x, y = torch.randn(2, 3, 32, 32), torch.randint(3, (2,))
        return training(model, lambda: model(pixel_values=x, labels=y).loss)

    return case


for _name in ("vit", "vit_msn", "dinov2", "ijepa"):
    world.add(f"{_name} (images)", _images(_name))
world.add("beit (images)", _images("beit", use_relative_position_bias=True))
world.add(
    "swin (images)",
    _images("swin", patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4),
)
world.add(
    "swinv2 (images)",
    _images("swinv2", patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4),
)
world.add(
    "convnext (images)", _images("convnext", patch_size=2, hidden_sizes=[4, 8, 8, 8], depths=[1, 1, 1, 1])
)
world.add(
    "resnet (images)",
    _images("resnet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
)
world.add(
    "regnet (images)",
    _images("regnet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4),
)
world.add(
    "poolformer (images)", _images("poolformer", patch_size=7, hidden_sizes=[4, 8, 8, 8], depths=[1, 1, 1, 1])
)
world.add("mobilenet_v2 (images)", _images("mobilenet_v2", depth_multiplier=0.25))
world.add(
    "segformer (images)",
    _images(
        "segformer",
        patch_size=7,
        hidden_sizes=[4, 8, 8, 8],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 1, 2, 2],
    ),
)


@world.case("clip (images and text)")
def _clip() -> Training:
    import transformers

    small = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.CLIPConfig(
        text_config={**small, "vocab_size": 96, "max_position_embeddings": 32, "eos_token_id": 2},
        vision_config={**small, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    model = transformers.CLIPModel(config)
    batch = {"input_ids": tokens(), "pixel_values": torch.randn(2, 3, 32, 32)}
    return training(model, lambda: model(**batch, return_loss=True).loss)


def _waves(model_type: str, **changes: Any) -> Callable[[], Training]:
    def case() -> Training:
        import transformers

        small = {
            "conv_dim": (8, 8),
            "conv_stride": (5, 4),
            "conv_kernel": (10, 4),
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "mask_time_length": 2,
            "mask_time_prob": 0.2,
            "ctc_loss_reduction": "mean",
        }
        model = transformers.AutoModelForCTC.from_config(tiny(model_type, **{**small, **changes}))
        x, y = torch.randn(2, 800), torch.randint(3, 90, (2, 5))
        return training(model, lambda: model(x, labels=y).loss)

    return case


for _name in ("wav2vec2", "hubert", "wavlm", "unispeech-sat"):
    world.add(f"{_name} (speech)", _waves(_name))


@world.case("wav2vec2, pretraining with quantised negatives")
def _pretraining() -> Training:
    import transformers

    config = tiny(
        "wav2vec2",
        conv_dim=(8, 8),
        conv_stride=(5, 4),
        conv_kernel=(10, 4),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        codevector_dim=8,
        proj_codevector_dim=8,
        num_codevectors_per_group=4,
    )
    model = transformers.Wav2Vec2ForPreTraining(config)
    x = torch.randn(2, 800)
    frames = int(model._get_feat_extract_output_lengths(800))
    masked = torch.zeros(2, frames, dtype=torch.bool)
    masked[:, 5:15] = True
    negatives = torch.randint(0, frames, (2, frames, 4))
    return training(
        model, lambda: model(x, mask_time_indices=masked, sampled_negative_indices=negatives).loss
    )


@world.case("whisper (speech to text)")
def _whisper() -> Training:
    import transformers

    config = tiny(
        "whisper", num_mel_bins=8, max_source_positions=10, max_target_positions=20, suppress_tokens=None
    )
    model = transformers.WhisperForConditionalGeneration(config)
    x, y = torch.randn(2, 8, 20), tokens(6)
    return training(model, lambda: model(input_features=x, labels=y).loss)


@pytest.mark.parametrize("case", world.cases, ids=str)
def test_trains_as_it_does_alone(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
