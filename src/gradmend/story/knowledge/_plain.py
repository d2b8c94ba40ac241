"""ATen's formulas as a person would write them.

Most formulas read well once C++ is swept off; those that only call a helper (`mul_tensor_backward(...)`) say
nothing, so for the common ones the helper's meaning is written out. A test evaluates each against autograd.
"""

from __future__ import annotations

import re
from functools import cache

# By node, then by the input whose gradient it is: Python over the saved names and `grad`, else words.
PLAIN: dict[str, dict[str, str]] = {
    "MulBackward0": {"self": "grad * other", "other": "grad * self"},
    "MulBackward1": {"self": "grad * other"},
    "AddBackward0": {"self": "grad", "other": "grad * alpha"},
    "SubBackward0": {"self": "grad", "other": "-grad * alpha"},
    "DivBackward0": {"self": "grad / other", "other": "-grad * self / (other * other)"},
    "PowBackward0": {"self": "grad * exponent * self ** (exponent - 1)"},
    "PowBackward1": {
        "self": "grad * exponent * self ** (exponent - 1)",
        "exponent": "grad * result * log(self)",
    },
    "SigmoidBackward0": {"self": "grad * result * (1 - result)"},
    "TanhBackward0": {"self": "grad * (1 - result * result)"},
    "ReluBackward0": {"self": "grad where result > 0, else 0"},
    "ExpBackward0": {"self": "grad * result"},
    "LogBackward0": {"self": "grad / self"},
    "SqrtBackward0": {"self": "grad / (2 * result)"},
    "RsqrtBackward0": {"self": "-0.5 * grad * result ** 3"},
    "ReciprocalBackward0": {"self": "-grad * result * result"},
    "SoftmaxBackward0": {"self": "result * (grad - sum(grad * result, dim))"},
    "LogSoftmaxBackward0": {"self": "grad - exp(result) * sum(grad, dim)"},
    "MmBackward0": {"self": "grad @ mat2.T", "mat2": "self.T @ grad"},
    "MvBackward0": {"self": "outer(grad, vec)", "vec": "self.T @ grad"},
    "BmmBackward0": {"self": "grad @ mat2.mT", "mat2": "self.mT @ grad"},
    "AddmmBackward0": {"mat1": "grad @ mat2.T", "mat2": "mat1.T @ grad"},
    "DotBackward0": {"self": "grad * tensor", "tensor": "grad * self"},
    "SinBackward0": {"self": "grad * cos(self)"},
    "CosBackward0": {"self": "-grad * sin(self)"},
    "AbsBackward0": {"self": "grad * sign(self)"},
    "LeakyReluBackward0": {"self": "grad where self > 0, else grad * negative_slope"},
    "SoftplusBackward0": {"self": "grad * sigmoid(beta * self)"},
    "SiluBackward0": {"self": "grad * sigmoid(self) * (1 + self * (1 - sigmoid(self)))"},
    "ClampBackward1": {"self": "grad where min <= self <= max, else 0"},
    "CumprodBackward0": {"self": "a reverse cumulative sum of grad * result, divided by self"},
    "ConvolutionBackward0": {
        "input": "grad convolved with the weight",
        "weight": "the input correlated with grad",
    },
    "NativeLayerNormBackward0": {
        "input": "from grad, the input and its mean and reciprocal deviation",
        "weight": "the sum of grad times the normalised input",
    },
    "NativeBatchNormBackward0": {
        "input": "from grad, input, weight and the batch's statistics, in eval mode running_mean and running_var",
        "weight": "the sum of grad times the normalised input",
    },
    "EmbeddingBackward0": {"weight": "rows of grad, added up at the indices"},
    "IndexBackward0": {"self": "grad, added up at the indices"},
    "GatherBackward0": {"self": "grad, added up at index along dim"},
    "MaskedFillBackward0": {"self": "grad, and 0 where mask"},
    "LogsumexpBackward0": {"self": "grad * exp(self - result)"},
    "ProdBackward0": {"self": "grad * result / self"},
    "BinaryCrossEntropyWithLogitsBackward0": {"self": "grad * (sigmoid(self) - target)"},
    "MseLossBackward0": {"self": "2 * grad * (self - target), over the count for a mean"},
    "StdBackward0": {"self": "grad * (self - mean(self)) / result, over the count less one"},
    "VarBackward0": {"self": "2 * grad * (self - mean(self)), over the count less one"},
    "LinalgVectorNormBackward0": {"self": "grad * self / result, for the 2-norm"},
    "NormBackward0": {"self": "grad * self / result, for the 2-norm"},
    "NormBackward1": {"self": "grad * self / result, for the 2-norm"},
    "HardtanhBackward0": {"self": "grad where min_val < self < max_val, else 0"},
    "EluBackward0": {"self": "grad where self > 0, else grad * alpha * exp(self)"},
    "ClampMinBackward0": {"self": "grad where self >= min, else 0"},
    "MaxPool2DWithIndicesBackward0": {"self": "grad, added up at the indices in result1"},
    "MaxBackward0": {"self": "grad, put at indices along dim"},
    "MinBackward0": {"self": "grad, put at indices along dim"},
    "NllLossBackward0": {"self": "-grad * weight at the target of each row, over total_weight for a mean"},
    "ScaledDotProductFlashAttentionForCpuBackward0": {
        "query": "from grad, query, key, value, output and logsumexp",
    },
    "WhereBackward0": {"self": "grad where condition, else 0", "other": "grad where not condition, else 0"},
}

_SWEEP = (
    (r"_symint\b", ""),
    (r"\bat::(?:native::)?", ""),
    (r"\.conj\(\)", ""),  # of a real tensor: itself
    (r"(?:self|grad|result)->", lambda m: m.group(0).replace("->", ".")),
    (r"^grad\.defined\(\) \? (.*) : (?:std::tuple<[^?]*>\(\)|Tensor\(\))$", r"\1"),
    (r"^GradMode::is_enabled\(\) \? .* : (.*)$", r"\1"),
    (r"^handle_r_to_c\(self(?:\.scalar_type\(\))?, (.*)\)$", r"\1"),
    (r"^handle_r_to_c\(other(?:\.scalar_type\(\))?, (.*)\)$", r"\1"),
)


def plain(node: str | None, inputs: tuple[str, ...], text: str) -> str:
    """The formula for these inputs in words or in Python; ATen's own text where we have nothing better."""
    known = PLAIN.get(node or "", {})
    for name in inputs:
        if name in known:
            return known[name]
    return _swept(text)


def is_plain(node: str | None, slot: str) -> bool:
    """Whether the formula that reads this slot is written out above, not ATen's C++."""
    return any(re.search(rf"\b{slot}\b", text) for text in PLAIN.get(node or "", {}).values())


def why_needed(
    node: str | None, inputs: tuple[str, ...], text: str, slot: str
) -> tuple[tuple[str, ...], str]:
    """Of inputs that share one formula, those whose gradient needs the slot, and how it is computed."""
    known = PLAIN.get(node or "", {})
    for name in inputs:
        if name in known and re.search(rf"\b{slot}\b", known[name]):
            said = _quoted(known[name])
            return (name,), said if said.startswith("from ") else f"as {said}"
    return inputs, f"as `{_swept(text)}`"


@cache
def _quoted(formula: str) -> str:
    """Code in backticks, words as they are."""
    try:
        compile(formula, "", "eval")
    except SyntaxError:
        return formula
    # "grad, put at indices" would be a tuple
    return formula if ", " in formula and "(" not in formula else f"`{formula}`"


def _swept(text: str) -> str:
    for pattern, by in _SWEEP:
        text = re.sub(pattern, by, text)
    return text
