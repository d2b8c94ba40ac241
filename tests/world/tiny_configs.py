"""Small random-init models from transformers' own config classes: no hub, no weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from world_runs import Training, training

# Whichever of these a config class knows, it gets.
TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "d_model": 32,
    "embedding_size": 16,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 40,
    "ffn_dim": 40,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "d_ff": 40,
    "d_kv": 8,
    "max_position_embeddings": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "image_size": 32,
    "patch_size": 8,
    "use_cache": False,
}


def tiny(model_type: str, **changes: Any) -> Any:
    """The config of this family, as small as it goes."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    known = kind()
    names = {**TINY, **changes}
    mapped = getattr(kind, "attribute_map", {})
    given: dict[str, Any] = {}
    for name, value in names.items():
        fits = hasattr(known, name) and isinstance(getattr(known, name), (int, type(None)))
        if value is not None and (fits or name in changes):
            given[mapped.get(name, name)] = value
    return kind(**given)


def tokens(length: int = 16) -> torch.Tensor:
    return torch.randint(3, 90, (2, length))


def text(auto: str, model_type: str, **changes: Any) -> Training:
    """Train a language model on random tokens, by its own loss."""
    import transformers

    changes = dict(changes)
    checkpointing = changes.pop("checkpointing", False)
    model = getattr(transformers, auto).from_config(tiny(model_type, **changes))
    if checkpointing:
        model.gradient_checkpointing_enable()
    batch = {"input_ids": tokens(), "labels": tokens()}
    return training(model, lambda: model(**batch).loss)


def by_auto(auto: str, model_type: str, **changes: Any) -> Callable[[], Training]:
    return lambda: text(auto, model_type, **changes)
