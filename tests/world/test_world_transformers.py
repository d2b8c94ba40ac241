"""Language models of transformers, from tiny random configs, trained by their own losses."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from tiny_configs import by_auto
from world_runs import Case, Trained, Training, World

pytest.importorskip("transformers")
pytestmark = pytest.mark.world
world = World("transformers")

MASKED = (
    "albert bert big_bird camembert convbert deberta deberta-v2 distilbert electra ernie esm fnet ibert mobilebert "
    "modernbert mpnet mra nystromformer rembert roberta roformer tapas xlm yoso"
).split()
CAUSAL = (
    "apertus arcee biogpt bitnet bloom cohere ctrl cwm diffllama doge ernie4_5 ernie4_5_moe exaone4 falcon_mamba gemma "
    "gemma2 glm gpt2 gpt_bigcode gpt_neox granite helium jetmoe llama mamba mistral mixtral mpt "
    "nemotron olmo olmo2 olmoe openai-gpt opt persimmon phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe recurrent_gemma "
    "rwkv smollm3 stablelm starcoder2 xglm"
).split()
SEQUENCE = "bart bigbird_pegasus blenderbot fsmt m2m_100 marian mbart mt5 nllb-moe pegasus umt5".split()

# What does not fit into the common size.
CHANGED = {
    "funnel": {"block_sizes": [1, 1], "num_hidden_layers": None, "n_head": 4, "d_head": 8, "d_inner": 40},
    "longformer": {"attention_window": [8, 8], "max_position_embeddings": 80},
    "reformer": {
        "axial_pos_embds": False,
        "attention_head_size": 8,
        "feed_forward_size": 40,
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "num_buckets": 2,
        "num_hashes": 1,
        "hash_seed": 0,
        "is_decoder": False,
    },
    "squeezebert": {"embedding_size": 32},
    "falcon": {"head_dim": None},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 8, "chunk_size": 8},
    "xlnet": {"max_position_embeddings": None},
    "t5": {"decoder_start_token_id": 0},
    "switch_transformers": {
        "decoder_start_token_id": 0,
        "num_sparse_encoder_layers": 1,
        "num_sparse_decoder_layers": 1,
    },
    "led": {
        "attention_window": [8, 8],
        "max_encoder_position_embeddings": 64,
        "max_decoder_position_embeddings": 64,
    },
}

for _name in MASKED:
    world.add(f"{_name} (masked)", by_auto("AutoModelForMaskedLM", _name))
for _name in ("funnel", "longformer", "squeezebert"):
    world.add(f"{_name} (masked)", by_auto("AutoModelForMaskedLM", _name, **CHANGED[_name]))
for _name in CAUSAL:
    world.add(f"{_name} (causal)", by_auto("AutoModelForCausalLM", _name))
for _name in ("falcon", "gptj", "codegen", "mamba2", "xlnet"):
    world.add(f"{_name} (causal)", by_auto("AutoModelForCausalLM", _name, **CHANGED[_name]))
for _name in SEQUENCE:
    world.add(f"{_name} (sequence to sequence)", by_auto("AutoModelForSeq2SeqLM", _name))
for _name in ("t5", "switch_transformers", "led"):
    world.add(f"{_name} (sequence to sequence)", by_auto("AutoModelForSeq2SeqLM", _name, **CHANGED[_name]))
for _name in ("llama", "t5", "bert"):
    world.add(
        f"{_name}, gradient checkpointing",
        by_auto(
            {"llama": "AutoModelForCausalLM", "t5": "AutoModelForSeq2SeqLM", "bert": "AutoModelForMaskedLM"}[
                _name
            ],
            _name,
            checkpointing=True,
            **CHANGED.get(_name, {}),
        ),
    )


def _seed() -> int:
    return torch.manual_seed(7).initial_seed()


@world.case("reformer (masked)")
def _reversible() -> Training:
    """Its layers have no graph: their backward computes forward again, from seeds that it draws by torch.seed()."""
    train = by_auto("AutoModelForMaskedLM", "reformer", **CHANGED["reformer"])()

    def seeded() -> Trained:
        with mock.patch.object(torch, "seed", _seed):
            return train()

    return seeded


@pytest.mark.parametrize("case", world.cases, ids=str)
def test_trains_as_it_does_alone(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
