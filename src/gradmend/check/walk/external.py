"""Names from outside the project, by their dotted names."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from gradmend.check import table
from gradmend.check.values import (
    NONE,
    Const,
    Ext,
    Instance,
    Number,
    Opaque,
    Partial,
    Seq,
    Tensor,
    Value,
    unknown,
)
from gradmend.check.walk.operators import BINARY
from gradmend.check.walk.sparse import CONSTRUCTORS, is_sparse

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
    {
        "all_reduce",
        "broadcast",
        "reduce",
        "scatter",
        "recv",
        "irecv",
        "all_to_all_single",
        "all_gather",
        "all_gather_into_tensor",
        "reduce_scatter",
        "reduce_scatter_tensor",
    }
)
# Contexts under which a write to what was saved does no harm; hooks of the program's own may keep copies.
_DERIVATIVES = frozenset({"grad", "grad_and_value", "jacrev", "hessian"})  # of a function, as a function
_FORGIVE = frozenset({"allow_mutation_on_saved_tensors", "heal", "save_on_cpu", "saved_tensors_hooks"})
_EXPECT = frozenset(
    "pytest.raises contextlib.suppress suppress raises unittest.TestCase.assertRaises".split()
)
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
        if name in _EXPECT:
            return Instance(None, "expects")
        if last in ("ExitStack", "AsyncExitStack", "nullcontext"):
            return Instance(None, "stack")
        if head in ("numpy", "np"):
            return self.walk.arrays.numpy(last, args, keywords, node)
        if name.endswith("sparse.patch"):
            if isinstance(self.walk.statement, ast.Expr):
                self.walk.patched = True
            return Instance(None, "patched")
        if name == "gradmend.derivative":
            # Of what needs no gradient: a derivative that needs none. Else nobody knows.
            needs = self.walk.tensors.strongest([p for v in args[1:] for p in self.walk.tensors_in(v)])
            return unknown() if needs else Opaque("", True)
        if name == "gradmend.super":
            return self.walk.module_methods.base_method(args, keywords, node)
        if last in ("deepcopy", "copy") and head == "copy" and args:
            if last == "deepcopy":
                self.walk.sparse.copied(args[0], node)
            return self.walk.builtin.copied(args[0], {}, last == "deepcopy")
        if last == "partial" and args:
            return Partial(args[0], args[1:], keywords)
        if head == "operator" and len(args) == 2:
            return self._operator(last, args, node)
        if last in ("OrderedDict", "defaultdict"):
            return self.walk.builtin.builtin("dict", args if last == "OrderedDict" else [], keywords, node)
        if last == "namedtuple":
            return unknown()
        if last in _FORGIVE:
            return Instance(None, "forgive")
        if (
            last in ("tqdm", "track", "iter")
            and args
            and isinstance(args[0], Instance)
            and args[0].nn == "generator"
        ):
            return args[0]
        if last in _PASS:
            return self.walk.builtin.builtin({"trange": "range"}.get(last, "list"), args, keywords, node)
        if last in _OPTIMIZERS:
            return self.walk.optim.make_optimizer(last, args, keywords, node)
        if head in ("math", "time") or name in ("random.random", "random.uniform", "random.gauss"):
            return Number()
        if head in ("random", "os", "sys", "time", "json", "logging", "warnings", "re", "pathlib"):
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
        if last == "_set_grad_enabled" and args:
            self.walk.grad_mode = self.walk.questions.truthy(args[0])
            return NONE
        if last in ("is_scripting", "is_tracing"):
            return Const(False)
        if last == "is_tensor" and args:
            known = isinstance(args[0], Tensor) and not args[0].opaque
            return Const(True) if known else unknown()
        if last == "is_grad_enabled":
            return unknown() if self.walk.grad_mode is None else Const(self.walk.grad_mode)
        if last == "from_numpy" and args:
            return self.walk.arrays.from_array(args[0], node)
        if last in ("from_dlpack", "to_dlpack") and args:
            return self.walk.arrays.by_capsule(args[0], node)
        if last == "DataLoader" or (parts[1:2] == ["utils"] and last in ("DataLoader", "TensorDataset")):
            if last == "DataLoader" and args:
                self.walk.sparse.batched(args[0], keywords, node)
            return Instance(None, "loader") if last == "DataLoader" else unknown()
        if last in CONSTRUCTORS:
            return self.walk.sparse.make(last, args, keywords, node)
        if last.startswith("_foreach_") and last.endswith("_") and args:
            return self._foreach(last, args, node)
        if parts[1:2] == ["func"] and last in ("jvp", "jacfwd") and args:
            return self._forward_mode(args, node)
        if parts[1:2] == ["func"] and last in _DERIVATIVES and args:
            return Partial(Ext("gradmend.derivative"), [args[0]], {})
        if parts[1:2] == ["func"] and last == "functional_call" and len(args) > 1:
            return self.walk.ops.all_kept("functional_call", args[1:], node)
        if len(parts) > 2 and parts[1] in ("linalg", "special"):
            return self.walk.ops.op(
                f"{parts[1]}_{last}" if table.op(f"{parts[1]}_{last}") else last, args, dict(keywords), node
            )
        if len(parts) == 3 and parts[1] == "sparse" and last in ("mm", "addmm") and args:
            if isinstance(args[0], Tensor) and is_sparse(args[0]):
                self.walk.sparse.refuse(args[0], "mm", args[1:], {}, node)
            return self.walk.ops.op("mm" if last == "mm" else "addmm", args, dict(keywords), node)
        if len(parts) == 3 and parts[1] == "sparse" and last == "sum" and args:
            return self.walk.sparse.summed(args, keywords, node)
        if parts[1] == "distributed" and len(parts) == 3 and last in _COLLECTIVES and args:
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

    def _operator(self, last: str, args: list[Value], node: ast.AST) -> Value:
        """operator.iadd(x, y), operator.mul(x, y)."""
        name = last.strip("_").replace("truediv", "div")
        if name.startswith("i") and name[1:] in BINARY.values():
            if self.walk.tensors_in(args[0], deep=0):
                return self.walk.writes.write(
                    args[0], f"{name[1:]}_", node, {"other": args[1]}, shown=f"operator.{last}()"
                )
            return args[0]
        if name in BINARY.values():
            return self.walk.expressions.arithmetic(name, args[0], args[1], node)
        return unknown()

    def _foreach(self, last: str, args: list[Value], node: ast.AST) -> Value:
        """torch._foreach_add_(parameters, ...): the op on each tensor of the first list."""
        op = last.removeprefix("_foreach_")
        others: dict[str, Value] = {f"arg{i}": v for i, v in enumerate(args[1:]) if not isinstance(v, Const)}
        return self.walk.writes.write(args[0], op, node, others, shown=f"{last}()")

    def _forward_mode(self, args: list[Value], node: ast.AST) -> Value:
        before, self.walk.forward_mode = self.walk.forward_mode, True
        try:
            with self.walk.mode(False):
                inputs = list(args[1].items) if len(args) > 1 and isinstance(args[1], Seq) else []
                if inputs:
                    self.walk.calls.call_value(args[0], inputs, {}, node)
        finally:
            self.walk.forward_mode = before
        return unknown()
