"""What we say an op keeps, against PyTorch's own code generator and against the graph that it records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

from gradmend.story.knowledge import UnknownOp, _entries, _lookup, by_node, saves
from gradmend.story.knowledge._plain import PLAIN


def test_entries_equal_those_of_torchs_own_generator() -> None:
    from torchgen.packaged.autograd.load_derivatives import load_derivatives

    packaged = _entries.path().parents[1]
    native = packaged / "ATen/native"
    infos, _ = load_derivatives(
        str(_entries.path()), str(native / "native_functions.yaml"), str(native / "tags.yaml")
    )

    def tensor_name(saved: Any) -> str | None:
        name = saved.nctype.name if isinstance(saved.nctype.name, str) else saved.nctype.name.name
        kind = str(saved.nctype.type)
        is_tensor = "Tensor" in kind and "Options" not in kind and "Geometry" not in kind
        return name if is_tensor and saved.expr == name else None

    wanted = {
        info.op: {n for s in [*info.all_saved_inputs, *info.all_saved_outputs] if (n := tensor_name(s))}
        for by_key in infos.values()
        for info in by_key.values()
        if info.op and not info.op.endswith("_copy")
    }
    assert {entry.node: set(entry.keeps) for entry in _entries.entries() if entry.node} == wanted


def _nodes(out: Any) -> list[Any]:
    found, todo = [], [t.grad_fn for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found.append(node)
            todo += [n for n, _ in node.next_functions]
    return found


def _check_against_graphs(ops: list[Any]) -> set[str]:
    seen = set()
    for op in ops:
        for sample in list(op.sample_inputs("cpu", torch.float64, requires_grad=True))[:4]:
            for node in _nodes(op(sample.input, *sample.args, **sample.kwargs)):
                slots = {a.removeprefix("_raw_saved_") for a in dir(node) if a.startswith("_raw_saved_")}
                if node.name().endswith("AccumulateGrad") or not slots - {"tensors"}:
                    continue
                known = by_node(node.name())
                assert known.overloads, f"{node.name()} of {op.name} is not known"
                assert set(known.keeps) == slots, node.name()
                seen.add(node.name())
    return seen


POPULAR = [
    "abs",
    "add",
    "addmm",
    "atan2",
    "bmm",
    "clamp",
    "cos",
    "cumprod",
    "div",
    "exp",
    "gather",
    "index_select",
    "log",
    "log_softmax",
    "logsumexp",
    "masked_fill",
    "matmul",
    "max",
    "mm",
    "mul",
    "nn.functional.conv2d",
    "nn.functional.cross_entropy",
    "nn.functional.gelu",
    "nn.functional.layer_norm",
    "nn.functional.max_pool2d",
    "nn.functional.softplus",
    "norm",
    "pow",
    "prod",
    "relu",
    "scatter_add",
    "sigmoid",
    "sin",
    "softmax",
    "sqrt",
    "std",
    "sum",
    "tanh",
    "var",
    "where",
]


def test_slots_of_popular_ops_are_those_of_their_nodes() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    ops = [op for op in op_db if op.name in POPULAR]
    assert len(_check_against_graphs(ops)) > 40


@pytest.mark.ops
def test_slots_of_all_ops_are_those_of_their_nodes() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    ops = [
        op for op in op_db if op.supports_autograd and torch.float64 in op.supported_backward_dtypes("cpu")
    ]
    assert len(_check_against_graphs(ops)) > 200


# The rule of thumb that people need, each line then tried on the real thing.
@pytest.mark.parametrize(
    ("op", "input_safe", "output_safe"),
    [
        *[
            (op, True, False)
            for op in ("exp", "sigmoid", "tanh", "relu", "sqrt", "softmax", "log_softmax", "rsqrt")
        ],
        *[(op, False, True) for op in ("mul", "log", "sin", "abs", "silu", "conv2d", "linear", "@", "clip")],
        *[(op, True, True) for op in ("add", "sub", "sum", "view", "+", "mean", "cat")],
        ("std", False, False),
    ],
)
def test_what_may_be_written(op: str, input_safe: bool, output_safe: bool) -> None:
    known = saves(op)
    assert (known.writing_input_is_safe, known.writing_output_is_safe) == (input_safe, output_safe)


@pytest.mark.parametrize(
    "op", ["exp", "sigmoid", "tanh", "relu", "sqrt", "rsqrt", "log", "sin", "cos", "abs", "neg", "square"]
)
def test_our_answer_is_what_pytorch_does(op: str) -> None:
    def runs(write: str) -> bool:
        leaf = torch.tensor([0.5, 1.5], requires_grad=True)
        x = leaf * 1
        y = getattr(torch, op)(x)
        with torch.no_grad():
            {"input": x, "output": y}[write].add_(0.25)
        try:
            y.sum().backward()
        except RuntimeError:
            return False
        return True

    assert runs("input") is saves(op).writing_input_is_safe
    assert runs("output") is saves(op).writing_output_is_safe


@pytest.mark.parametrize(
    "op",
    [
        "mul_",
        "clamp_",
        "div_",
        "sin_",
        "abs_",
        "log_",
        "relu_",
        "exp_",
        "sigmoid_",
        "selu_",
        "rrelu_",
        "celu_",
    ],
)
def test_in_place_ops_keep_a_copy_of_self(op: str) -> None:
    x, other = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
    h, kept = x.clone(), []
    args: dict[str, Any] = {"mul_": (other,), "div_": (other,), "clamp_": (0.1, 0.9)}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()), lambda _: x):
        getattr(torch, op)(h, *args.get(op, ())) if not hasattr(h, op) else getattr(h, op)(*args.get(op, ()))
    known = saves(op)
    assert known.inplace
    assert (h.data_ptr() not in kept) is known.writing_output_is_safe
    assert "self" not in known.kept_inputs


@pytest.mark.parametrize(
    ("said", "op", "inplace"),
    [
        ("torch.exp", "exp", False),
        ("F.relu_", "relu_", True),
        ("torch.nn.functional.gelu", "gelu", False),
        ("Tensor.__imul__", "mul_", True),
        ("*=", "mul_", True),
        ("**", "pow", False),
        ("aten::mul_.Tensor", "mul_", True),
        ("__truediv__", "div", False),
        ("x.sigmoid()", "sigmoid", False),
        ("__setitem__", "setitem", True),
        ("@=", "matmul", False),
        ("nn.ReLU", "relu", False),
        ("torch.nn.BatchNorm2d", "batch_norm", False),
        ("nn.CrossEntropyLoss", "cross_entropy", False),
        ("nn.NLLLoss", "nll_loss", False),
        ("torch.linalg.solve", "linalg_solve", False),
        ("torch.special.xlog1py", "special_xlog1py", False),
    ],
)
def test_names_as_people_say_them(said: str, op: str, inplace: bool) -> None:
    known = saves(said)
    assert (known.op, known.inplace) == (op, inplace)


def test_composite_ops_are_measured() -> None:
    known = saves("F.cross_entropy")
    assert known.measured is not None
    assert known.measured.nodes == ("LogSoftmaxBackward0", "NllLossBackward0")
    assert known.measured.kept_inputs == ("target",)
    assert "runs as _log_softmax, nll_loss_forward" in known.note


def test_measuring_leaves_the_random_state_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    _lookup._saves.cache_clear()
    assert saves("dropout").measured is not None
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "op", ["requires_grad_", "copy_", "_foreach_exp", "manual_seed", "backward", "to", ""]
)
def test_anything_that_torch_has_gets_an_answer(op: str) -> None:
    try:
        assert "clone" not in saves(op).note, "the example's own preparation is not the op's"
    except UnknownOp:
        assert op == ""


def test_an_op_that_is_not_there_names_its_neighbours() -> None:
    with pytest.raises(UnknownOp, match=r"no op called 'sofmax' in torch; did you mean softmax"):
        saves("sofmax")


def test_ops_without_an_entry_say_so() -> None:
    known = saves("argmax")
    assert not known.known and known.writing_input_is_safe is None
    assert "no entry in derivatives.yaml" in known.note


@pytest.mark.parametrize(
    ("node", "op", "slot", "words"),
    [
        ("ExpBackward0", "exp", "result", "exp keeps its result, because it computes the gradient of `self` as `grad * result`."),
        ("MulBackward0", "mul", "other", "mul keeps its input `other`, because it computes the gradient of `self` as `grad * other`."),
        ("NllLossBackward0", "nll_loss", "target", "nll_loss keeps its input `target`"),
        ("SoftmaxBackward0", "softmax", "result", "softmax keeps its result"),
        ("IndexBackward0", "index", "indices[0]", "index keeps its input `indices`"),
        ("ForeachExpBackward0", "exp", "result", "exp keeps its result"),
        ("ConvolutionBackward0", "convolution", "input", "convolution keeps its input `input`, because it computes the gradient of `weight` as the input correlated with grad."),
        ("ReluBackward0", "relu", "result", "relu keeps its result, because it computes the gradient of `self` as grad where result > 0, else 0."),
        ("MaxBackward0", "max", "indices", "max keeps its result `indices`, because it computes the gradient of `self` as grad, put at indices along dim."),
        ("GeluBackward0", "gelu", "self", "gelu keeps its input, because it computes the gradient of `self` as `gelu_backward(grad, self, approximate)`."),
        ("NativeLayerNormBackward0", "layer_norm", "input", "layer_norm keeps its input `input`, because it computes the gradient of `input` from grad, the input and its mean and reciprocal deviation."),
        ("ScaledDotProductFlashAttentionForCpuBackward0", "scaled_dot_product_attention", "key", "scaled_dot_product_attention keeps its input `key`"),
        ("FooBackward", "Foo", "tensors[0]", "Foo is an autograd.Function"),
        ("torch::autograd::CopySlices", "CopySlices", None, "A view was written in place"),
        ("SomethingNew", "SomethingNew", None, "no entry"),
    ],
)  # fmt: skip
def test_why(node: str, op: str, slot: str | None, words: str) -> None:
    known = by_node(node)
    assert known.op == op
    assert known.why(slot).startswith(words) or words in known.why(slot)


def _value(expression: str, names: dict[str, Any]) -> torch.Tensor:
    return eval(
        expression,
        {
            "torch": torch,
            **{n: getattr(torch, n) for n in ["exp", "log", "cos", "sin", "sign", "sigmoid", "outer"]},
        },
        names,
    )


CALLS: dict[str, Any] = {
    "MulBackward0": lambda a, b: a * b,
    "MulBackward1": lambda a, b: torch.ops.aten.mul.Scalar(a, 3.0),
    "AddBackward0": lambda a, b: torch.add(a, b, alpha=2),
    "SubBackward0": lambda a, b: torch.sub(a, b, alpha=2),
    "DivBackward0": lambda a, b: a / b,
    "PowBackward0": lambda a, b: a**3,
    "PowBackward1": lambda a, b: a**b,
    "SigmoidBackward0": lambda a, b: a.sigmoid(),
    "TanhBackward0": lambda a, b: a.tanh(),
    "ExpBackward0": lambda a, b: a.exp(),
    "LogBackward0": lambda a, b: a.log(),
    "SqrtBackward0": lambda a, b: a.sqrt(),
    "RsqrtBackward0": lambda a, b: a.rsqrt(),
    "ReciprocalBackward0": lambda a, b: a.reciprocal(),
    "SoftmaxBackward0": lambda a, b: a.softmax(1),
    "LogSoftmaxBackward0": lambda a, b: a.log_softmax(1),
    "MmBackward0": lambda a, b: a @ b,
    "BmmBackward0": lambda a, b: torch.bmm(a[None], b[None]),
    "SinBackward0": lambda a, b: a.sin(),
    "CosBackward0": lambda a, b: a.cos(),
    "AbsBackward0": lambda a, b: a.abs(),
    "SiluBackward0": lambda a, b: torch.nn.functional.silu(a),
    "LogsumexpBackward0": lambda a, b: a.logsumexp(1, keepdim=True),
    "ProdBackward0": lambda a, b: a.prod(),
    "BinaryCrossEntropyWithLogitsBackward0": lambda a, b: torch.nn.functional.binary_cross_entropy_with_logits(
        a, b.detach(), reduction="none"
    ),
    "SoftplusBackward0": lambda a, b: torch.nn.functional.softplus(a, beta=2.0),
}  # fmt: skip


@pytest.mark.parametrize("node", CALLS)
def test_plain_formulas_are_true(node: str) -> None:
    torch.manual_seed(0)
    a, b = (torch.rand(3, 3, dtype=torch.float64).add(0.2).requires_grad_() for _ in range(2))
    result = CALLS[node](a, b)
    assert result.grad_fn.name() == node
    grad = torch.rand_like(result)
    got = torch.autograd.grad(result, [a, b], grad, allow_unused=True)
    names: dict[str, Any] = {"grad": grad, "result": result, "self": a, "mat2": b, "exponent": b, "dim": 1}
    names |= {"target": b, "other": 3.0 if node == "MulBackward1" else b, "alpha": 2, "beta": 2.0}
    names["sum"] = lambda t, dim: t.sum(dim, keepdim=True)
    if node == "PowBackward0":
        names["exponent"] = 3
    for which, formula in PLAIN[node].items():
        right = got[0] if which == "self" else got[1]
        torch.testing.assert_close(_value(formula, names).reshape(3, 3), right)


def test_every_plain_formula_belongs_to_an_entry() -> None:
    for node, formulas in PLAIN.items():
        entry = _entries.at_node(node)
        assert entry is not None, node
        inputs = {n for f in entry.formulas for n in f.inputs}
        assert set(formulas) <= inputs, node


def test_importing_knowledge_is_cheap() -> None:
    code = "import sys, gradmend.story.knowledge; sys.exit('yaml' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent).returncode == 0


def test_one_node_is_read_as_the_whole_file_is() -> None:
    nodes = {entry.node: entry for entry in _entries.entries() if entry.node}
    assert len(nodes) > 500
    wrong = [node for node, entry in nodes.items() if _entries.at_node(node) != entry]
    assert not wrong
    assert _entries.at_node("NoSuchBackward0") is None and _entries.at_node("torch") is None
