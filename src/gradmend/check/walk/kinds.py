"""What the classes of torch.nn are: the function behind each, and the names of its parameters."""

from __future__ import annotations

import re

CONTAINERS = {"Sequential", "ModuleList", "ParameterList"}
# Modules with weights: the function behind them, and the names of their parameters.
WEIGHTED = {
    "Linear": ("linear", ("weight", "bias")),
    "LazyLinear": ("linear", ("weight", "bias")),
    "Bilinear": ("bilinear", ("weight", "bias")),
    "Embedding": ("embedding", ("weight",)),
    "EmbeddingBag": ("embedding", ("weight",)),
    "LayerNorm": ("layer_norm", ("weight", "bias")),
    "RMSNorm": ("rms_norm", ("weight",)),
    "GroupNorm": ("group_norm", ("weight", "bias")),
    "PReLU": ("prelu", ("weight",)),
}
RECURRENT = re.compile(r"^(LSTM|GRU|RNN)(Cell)?$")
CONV = re.compile(r"^(?:Lazy)?Conv(Transpose)?(\d)d$")
BATCH_NORM = re.compile(r"^(?:Lazy|Sync)?(Batch|Instance)Norm(\dd)?$")
LOSS = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "KLDivLoss": "kl_div",
}
_FUNCTIONS = {"LogSigmoid": "logsigmoid", "PReLU": "prelu", "RReLU": "rrelu"}
SAME = {"Identity", "DataParallel", "DistributedDataParallel"}


def snake(name: str) -> str:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    for odd, plain in (("ReLU", "Relu"), ("SiLU", "Silu"), ("Softmax2d", "Softmax")):
        name = name.replace(odd, plain)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
