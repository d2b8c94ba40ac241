"""What each op keeps, from ops.json: made by tools/make_ops.py from the installed torch, and shipped as data."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Op:
    name: str
    args: tuple[str, ...]
    keeps: dict[str, tuple[str, ...]]  # slot -> the inputs whose gradient reads it
    view: str = ""  # "one", or "many": several views of one call
    grad: bool = True  # passes a gradient on
    perhaps: dict[str, tuple[str, ...]] = field(default_factory=dict)  # as `keeps`: only some kernels do

    @property
    def slots(self) -> tuple[str, ...]:
        """All that it keeps, on every machine or on some."""
        return tuple(dict.fromkeys((*self.keeps, *self.perhaps)))

    @property
    def keeps_result(self) -> bool:
        return "result" in self.slots


@cache
def _raw() -> dict[str, dict]:
    text = Path(__file__).with_name("ops.json").read_text(encoding="utf-8")
    ops: dict[str, dict] = json.loads(text)["ops"]
    return ops


_ATTENDED = ["query", "key", "value", "attn_mask"]
# What the tool that makes ops.json can't run, or ran in a form that few people write; tests ask torch.
_BY_HAND: dict[str, dict] = {
    "prelu": {
        "args": ["self", "weight"],
        "keeps": {"self": ["self", "weight"], "weight": ["self", "weight"]},
    },
    "logsigmoid": {"args": ["self"], "keeps": {"self": ["self"]}},
    "softsign": {"args": ["self"], "keeps": {"self": ["self"]}},
    "local_response_norm": {"args": ["self", "size"], "keeps": {"self": ["self"]}},
    "grid_sample": {"args": ["self", "grid"], "keeps": {"self": ["self", "grid"], "grid": ["self", "grid"]}},
    "gumbel_softmax": {"args": ["self", "tau", "hard"], "keeps": {"result": ["self"]}},
    "rfft": {"args": ["self"], "keeps": {"self": ["self"]}},
    "adaptive_max_pool1d": {"args": ["self", "output_size"], "keeps": {"self": ["self"]}},
    "linalg_matrix_norm": {"args": ["self"], "keeps": {"result": ["self"], "self": ["self"]}},
    # The kernel made of other ops keeps scaled copies of what it is given, the fused ones keep that itself and their
    # result: which one runs is a matter of device, dimensions and release (2.13: three dimensions on a CPU are not fused).
    "scaled_dot_product_attention": {
        "args": ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"],
        "keeps": {"value": ["query", "key", "attn_mask"]},
        "perhaps": dict.fromkeys([*_ATTENDED, "result"], _ATTENDED),
    },
    # It computes in float64: of what it was given, it mostly keeps a copy.
    "float_power": {"args": ["self", "exponent"], "keeps": {"result": ["exponent"]}},
}
# Of these the result is kept wherever the reader is a tensor, whether that needs a gradient or not.
KEEPS_RESULT_WITH = frozenset({"pow", "float_power"})
# Those that give several: "g" has a gradient, "k" is kept as well, "i" are indices or the like, and kept.
SEVERAL = {
    **dict.fromkeys("max min sort topk median nanmedian mode kthvalue cummax cummin frexp".split(), "gi"),
    "var_mean": "gg",
    **dict.fromkeys("slogdet std_mean".split(), "kg"),
    **dict.fromkeys("aminmax qr eig eigh".split(), "kk"),
    "svd": "kkk",
}


@cache
def op(name: str) -> Op | None:
    """The op of this bare name ("exp", "linalg_inv"), or None where nothing is known of it."""
    raw = _BY_HAND.get(name) or _raw().get(name)
    if raw is None:
        return None
    keeps, perhaps = (
        {slot: tuple(inputs) for slot, inputs in raw.get(how, {}).items()} for how in ("keeps", "perhaps")
    )
    return Op(name, tuple(raw["args"]), keeps, raw.get("view", ""), raw.get("grad", True), perhaps)


NOTHING = Op("", ("self",), {})
# Calls that give several views at once. PyTorch refuses a write to one of these ...
MANY = frozenset("chunk split unbind split_with_sizes".split())
SLICES = frozenset("tensor_split hsplit vsplit dsplit".split())  # ... and makes these one by one, as slices
UNSAFE = frozenset(
    {"unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"}
)  # several copies: nobody's views
# Answers that carry no gradient, and whose result nobody differentiates.
CONSTANT = frozenset(
    """
    argmax argmin argsort eq ne lt le gt ge equal allclose isclose isnan isinf isfinite logical_and logical_or
    logical_not logical_xor any all nonzero count_nonzero bincount searchsorted bucketize floor_divide bernoulli multinomial histc unique unique_consecutive one_hot randint_like zeros_like ones_like rand_like
    randn_like empty_like full_like new_zeros new_ones new_empty new_full new_tensor long int bool byte short is_nonzero
    signbit isin
    """.split()
)
# Fresh tensors without history.
FACTORIES = frozenset(
    """
    tensor zeros ones rand randn randint randperm empty full eye arange linspace logspace as_tensor normal tril_indices
    triu_indices empty_strided scalar_tensor hann_window hamming_window from_file zeros_like ones_like
    rand_like randn_like randint_like empty_like full_like new_zeros new_ones new_empty new_full new_tensor load
    """.split()
)
# Conversions: the tensor itself where nothing changes, else a copy.
CONVERSIONS = frozenset(
    "to float double half bfloat16 cuda cpu type type_as contiguous reshape flatten requires_grad_ "
    "expand_as view_as reshape_as to_dense coalesce pin_memory data_ptr".split()
)
# In-place methods that change no values, or only settle what a tensor is.
NOT_WRITES = frozenset("requires_grad_ retain_grad share_memory_ rename_ is_shared_ register_hook_".split())
METADATA_WRITES = frozenset(
    "squeeze_ unsqueeze_ t_ transpose_ swapaxes_ swapdims_ resize_ resize_as_".split()
)
# Of integers and truth values: no gradient goes through them, and backward may still need what they change.
_OF_INTEGERS = frozenset(
    f"{name}_"
    for name in (
        "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift gcd lcm logical_and "
        "logical_or logical_xor logical_not greater greater_equal less less_equal not_equal apply map"
    ).split()
)
# In-place methods with no op of the same name.
FILLS = frozenset(
    """
    zero_ fill_ copy_ normal_ uniform_ random_ exponential_ geometric_ cauchy_ log_normal_ bernoulli_ index_put_ set_
    index_fill_ index_copy_ index_add_ scatter_ scatter_add_ scatter_reduce_ masked_fill_ masked_scatter_ put_
    fill_diagonal_ trunc_normal_ kaiming_normal_ xavier_uniform_ orthogonal_ eye_ ones_ zeros_ constant_ sparse_mask_
    """.split()
)
# Fills that overwrite all that was there: nothing of the old value is left.
OVERWRITES = frozenset(
    "zero_ fill_ copy_ normal_ uniform_ random_ exponential_ geometric_ cauchy_ log_normal_ set_".split()
)


def is_inplace(name: str) -> bool:
    """A Tensor method that writes: `add_`, `masked_fill_`; not `__add__`, not `requires_grad_`."""
    if not name.endswith("_") or name.endswith("__") or name.startswith("_") or name in NOT_WRITES:
        return False
    return (
        name in FILLS
        or name in _OF_INTEGERS
        or name in METADATA_WRITES
        or name == "detach_"
        or op(name) is not None
        or op(name[:-1]) is not None
    )
