"""Where `inplace` stands in calls that give it by its place: `F.dropout(x, 0.5, True, True)`. tests/check asks torch."""

from __future__ import annotations

FUNCTIONS = {
    **dict.fromkeys("hardsigmoid hardswish mish relu relu6 selu silu".split(), 1),
    **dict.fromkeys("celu elu leaky_relu".split(), 2),
    **dict.fromkeys(
        "alpha_dropout dropout dropout1d dropout2d dropout3d feature_alpha_dropout hardtanh threshold".split(),
        3,
    ),
    "rrelu": 4,
}
MODULES = {
    **dict.fromkeys("Hardsigmoid Hardswish Mish ReLU ReLU6 SELU SiLU".split(), 0),
    **dict.fromkeys(
        "AlphaDropout CELU Dropout Dropout1d Dropout2d Dropout3d ELU FeatureAlphaDropout LeakyReLU".split(), 1
    ),
    **dict.fromkeys("Hardtanh RReLU Threshold".split(), 2),
}
