"""x-transformers and vector-quantize-pytorch: code books that are updated in the middle of forward, many attentions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from world_runs import Case, Training, World, training

pytestmark = pytest.mark.world
books, xt = World("vector-quantize-pytorch"), World("x-transformers")


def _quantised(make: Callable[[Any], torch.nn.Module]) -> Callable[[], Training]:
    """An autoencoder with a code book in its middle."""

    def case() -> Training:
        library = pytest.importorskip("vector_quantize_pytorch")
        book = make(library)
        before, after = torch.nn.Linear(6, 8), torch.nn.Linear(8, 6)
        model = torch.nn.ModuleList([before, book, after])
        x = torch.randn(2, 10, 6)

        def loss() -> torch.Tensor:
            out = book(before(x))
            extra = out[2].sum() if len(out) > 2 and out[2].is_floating_point() else 0.0
            return F.mse_loss(after(out[0]), x) + extra

        return training(model, loss)

    return case


books.add("VectorQuantize, EMA code book", _quantised(lambda v: v.VectorQuantize(8, 16, decay=0.8)))
books.add(
    "VectorQuantize, k-means, dead codes",
    _quantised(lambda v: v.VectorQuantize(8, 16, kmeans_init=True, threshold_ema_dead_code=2)),
)
books.add(
    "VectorQuantize, cosine, orthogonal, rotation",
    _quantised(
        lambda v: v.VectorQuantize(8, 16, use_cosine_sim=True, orthogonal_reg_weight=1.0, rotation_trick=True)
    ),
)
books.add(
    "VectorQuantize, learnable, heads",
    _quantised(
        lambda v: v.VectorQuantize(
            8, 16, heads=2, separate_codebook_per_head=True, learnable_codebook=True, ema_update=False
        )
    ),
)
books.add(
    "ResidualVQ",
    _quantised(lambda v: v.ResidualVQ(dim=8, codebook_size=16, num_quantizers=3, quantize_dropout=True)),
)
books.add(
    "GroupedResidualVQ",
    _quantised(lambda v: v.GroupedResidualVQ(dim=8, codebook_size=16, num_quantizers=2, groups=2)),
)
books.add("SimVQ", _quantised(lambda v: v.SimVQ(dim=8, codebook_size=16)))
books.add("FSQ", _quantised(lambda v: v.FSQ([5, 4, 3], dim=8)))
books.add("LFQ", _quantised(lambda v: v.LFQ(codebook_size=16, dim=8, entropy_loss_weight=0.1)))


def _decoder(**options: Any) -> Callable[[], Training]:
    def case() -> Training:
        x_transformers = pytest.importorskip("x_transformers")
        model = x_transformers.AutoregressiveWrapper(
            x_transformers.TransformerWrapper(
                num_tokens=32,
                max_seq_len=16,
                attn_layers=x_transformers.Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, **options),
            )
        )
        x = torch.randint(0, 32, (2, 16))
        return training(model, lambda: model(x))

    return case


xt.add("decoder", _decoder())
xt.add(
    "decoder, rotary, GLU, RMSNorm",
    _decoder(rotary_pos_emb=True, ff_glu=True, ff_swish=True, use_rmsnorm=True, attn_qk_norm=True),
)
xt.add("decoder, ALiBi, gated residual", _decoder(alibi_pos_bias=True, gate_residual=True))
xt.add(
    "decoder, T5 bias, token shift, memory",
    _decoder(rel_pos_bias=True, shift_tokens=1, attn_num_mem_kv=2, macaron=True),
)
xt.add(
    "decoder, sparse top-k, dropout",
    _decoder(attn_sparse_topk=4, attn_dropout=0.1, ff_dropout=0.1, layer_dropout=0.1),
)
xt.add(
    "decoder, flash, sandwich norm",
    _decoder(attn_flash=True, sandwich_norm=True),
)


@xt.case("encoder and decoder (XTransformer)")
def _both() -> Training:
    x_transformers = pytest.importorskip("x_transformers")
    model = x_transformers.XTransformer(
        dim=32,
        enc_num_tokens=32,
        enc_depth=1,
        enc_heads=2,
        enc_max_seq_len=12,
        dec_num_tokens=32,
        dec_depth=1,
        dec_heads=2,
        dec_max_seq_len=12,
    )
    source, target = torch.randint(0, 32, (2, 2, 12)).unbind()
    return training(model, lambda: model(source, target))


@xt.case("ViTransformerWrapper")
def _images() -> Training:
    x_transformers = pytest.importorskip("x_transformers")
    model = x_transformers.ViTransformerWrapper(
        image_size=16,
        patch_size=8,
        num_classes=4,
        attn_layers=x_transformers.Encoder(dim=32, depth=2, heads=2),
    )
    x, y = torch.randn(2, 3, 16, 16), torch.randint(4, (2,))
    return training(model, lambda: F.cross_entropy(model(x), y))


@pytest.mark.parametrize("case", books.cases, ids=str)
def test_vector_quantize(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@pytest.mark.parametrize("case", xt.cases, ids=str)
def test_x_transformers(case: Case, check: Callable[[Case], None]) -> None:
    check(case)
