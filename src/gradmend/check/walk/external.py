"""Names from outside the project, by their dotted names."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check import table
from gradmend.check.values import Ext, Instance, Opaque, Partial, Seq, Tensor, Value, unknown

if TYPE_CHECKING:
    from gradmend.check.walk.walker import Walker

_PASS = frozenset(
    "tqdm trange track iter list tuple set sorted reversed deque prefetch chain cycle islice".split()
)
_OPTIMIZERS = frozenset(
    """
    SGD Adam AdamW RMSprop Adagrad Adadelta Adamax NAdam RAdam Rprop ASGD LBFGS SparseAdam Adafactor Muon Lion Lamb RMSProp
    """.split()
)
_COLLECTIVES = frozenset(
    {"all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor"}
)
_FORGIVE = frozenset({"allow_mutation_on_saved_tensors", "heal"})
_NO_NAMESPACE = frozenset(
    {
        "utils",
        "cuda",
        "backends",
        "jit",
        "compiler",
        "library",
        "distributed",
        "onnx",
        "profiler",
        "multiprocessing",
    }
)


class External:
    __slots__ = ("walk",)

    def __init__(self, walk: Walker) -> None:
        self.walk = walk

    def external(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        head, _, tail = name.partition(".")
        if head == "builtins":
            return self.walk.builtin.builtin(tail, args, keywords, node)
        if head == "torch":
            return self._torch(name, args, keywords, node)
        last = name.rpartition(".")[2]
        if head in ("numpy", "np"):
            return self.walk.arrays.numpy(last, args, node)
        if name == "gradmend.super":
            return self.walk.module_methods.base_method(args, keywords, node)
        if last in ("deepcopy", "copy") and head == "copy" and args:
            return self.walk.builtin.copied(args[0], {}, last == "deepcopy")
        if last == "partial" and args:
            return Partial(args[0], args[1:], keywords)
        if last in ("OrderedDict", "defaultdict"):
            return self.walk.builtin.builtin("dict", args if last == "OrderedDict" else [], keywords, node)
        if last == "namedtuple":
            return unknown()
        if last in _FORGIVE:
            return Instance(None, "forgive")
        if last in _PASS:
            return self.walk.builtin.builtin({"trange": "range"}.get(last, "list"), args, keywords, node)
        if last in _OPTIMIZERS:
            return self.walk.optim.make_optimizer(last, args, keywords, node)
        if head in ("math", "random", "os", "sys", "time", "json", "logging", "warnings", "re", "pathlib"):
            return unknown()
        if last in ("from_numpy",):
            return self.walk.arrays.from_array(args[0], node) if args else unknown()
        return self.walk.calls.unknown_call(None, args, keywords, node)

    def _torch(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        parts = name.split(".")
        last = parts[-1]
        if last in ("no_grad", "inference_mode", "enable_grad", "set_grad_enabled"):
            return self.walk.contexts.grad_mode(last, args, keywords, node)
        if last in ("autocast", "amp", "GradScaler"):
            return Instance(None, "scaler" if last == "GradScaler" else "context")
        if last in _FORGIVE:
            return Instance(None, "forgive")
        if parts[1:2] == ["nn"]:
            return self.walk.functional.nn(parts[2:], args, keywords, node)
        if parts[1:2] == ["optim"]:
            if len(parts) == 3 and last[:1].isupper():
                return self.walk.optim.make_optimizer(last, args, keywords, node)
            return unknown()
        if parts[1:2] == ["autograd"] and len(parts) == 3:
            return self.walk.backward.autograd(last, args, keywords, node)
        if parts[1:2] == ["distributions"]:
            made = Instance(None, "dist")
            made.attrs = {f"arg{i}": v for i, v in enumerate([*args, *keywords.values()])}
            return made
        if last == "checkpoint" and args:
            return self.walk.backward.checkpoint(args, keywords, node)
        if last in ("compile", "script", "jit", "trace", "vmap") and args:
            return args[0]
        if last in ("compile", "script"):
            return Ext("builtins.iter")
        if last == "from_numpy" and args:
            return self.walk.arrays.from_array(args[0], node)
        if last == "DataLoader" or (parts[1:2] == ["utils"] and last in ("DataLoader", "TensorDataset")):
            return self._loader(args) if last == "DataLoader" else unknown()
        if last in ("sparse_coo_tensor", "sparse_csr_tensor", "to_sparse"):
            made_tensor = self.walk.tensors.apply("clone", node, {"self": Seq(list(args))}, shown=last)
            if isinstance(made_tensor, Tensor):
                made_tensor.sparse = "result"
            return made_tensor
        if parts[1:2] == ["func"] and last == "functional_call" and len(args) > 1:
            return self.walk.ops.all_kept("functional_call", args[1:], node)
        if len(parts) > 2 and parts[1] in ("linalg", "special"):
            return self.walk.ops.op(
                f"{parts[1]}_{last}" if table.op(f"{parts[1]}_{last}") else last, args, dict(keywords), node
            )
        if parts[1] == "distributed" and last in _COLLECTIVES and args:
            return self.walk.writes.write(args[0], "copy_", node, shown=f"{last}()", how="collective")
        if len(parts) > 2 and parts[1] in _NO_NAMESPACE:
            return unknown()
        if len(parts) == 3 and parts[1] == "Tensor" and args and isinstance(args[0], Tensor):
            return self.walk.tensor_methods.tensor_method(args[0], last, args[1:], keywords, node)
        if last == "Tensor" or last.endswith("Tensor"):
            return self.walk.tensors.fresh(node)
        if table.is_inplace(last) and args:
            return self.walk.tensor_methods.in_place(
                args[0], last, args[1:], keywords, node, shown=f"{last}()"
            )
        if len(parts) > 3 and parts[1] not in ("fft",):
            return self.walk.calls.unknown_call(None, args, keywords, node)
        if last[:1].isupper():
            return unknown()
        if last in ("detach", "clone", "numpy", "reshape", "flatten", "chunk", "split", "unbind") and args:
            first = args[0].as_tensor() if isinstance(args[0], Opaque) else args[0]
            return self.walk.over(
                first,
                lambda v: (
                    self.walk.tensor_methods.tensor_method(
                        v.as_tensor() if isinstance(v, Opaque) else v, last, args[1:], keywords, node
                    )
                    if isinstance(v, (Tensor, Opaque))
                    else unknown()
                ),
            )
        if not args and "input" in keywords:
            keywords = dict(keywords)
            args = [keywords.pop("input")]
        return self.walk.ops.op(last, args, dict(keywords), node)

    def _loader(self, args: list[Value]) -> Value:
        return Seq([], "loader", rest=unknown("batch"))
