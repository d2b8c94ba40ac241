"""What PyTorch refuses of sparse tensors and sparse gradients (2.13 to 2.15); tests/check/test_sparse_refusals.py runs each."""

from __future__ import annotations

# Refused in the forward.
NO_FORWARD = frozenset(
    """
    acos acosh amax amin aminmax bernoulli clamp clip cos cosh count_nonzero cov det diag diagonal diff digamma erfc exp exp2
    flatten flipud fliplr hardshrink inverse lgamma log log10 log2 logdet logit max mean median min mode msort nanmean nansum
    nonzero prod qr ravel reciprocal rsqrt sigmoid sinc sort squeeze std svd trace tril triu var
    """.split()
)
# Allowed in the forward, refused in the backward.
NO_DERIVATIVE = frozenset(
    "asin asinh atan atanh erf erfinv expm1 norm relu sgn sin sinh sqrt tan tanh nan_to_num".split()
)
# Optimizers that take no sparse gradients.
DENSE_ONLY = frozenset("Adam AdamW RMSprop Adadelta Adamax NAdam RAdam Rprop ASGD Adafactor Muon".split())
# Optimizers that take them, but not with weight_decay.
NO_SPARSE_DECAY = frozenset({"SGD", "Adagrad"})
