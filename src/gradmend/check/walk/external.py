"""Names from outside the project: builtins, torch by its dotted names, numpy, and the few others that matter."""

from __future__ import annotations

import ast
import re
from functools import partial
from typing import Any

from gradmend.check import table
from gradmend.check.values import (
    MAYBE,
    NO,
    NONE,
    YES,
    Alt,
    Bound,
    Class,
    Const,
    Dict,
    Ext,
    Function,
    Instance,
    ModuleValue,
    Opaque,
    Partial,
    Seq,
    Tensor,
    Value,
    unknown,
)
from gradmend.check.walk.builtin import Builtins
from gradmend.check.walk.nn import snake

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


class External(Builtins):
    def external(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        head, _, tail = name.partition(".")
        if head == "builtins":
            return self.builtin(tail, args, keywords, node)
        if head == "torch":
            return self._torch(name, args, keywords, node)
        last = name.rpartition(".")[2]
        if head in ("numpy", "np"):
            return self._numpy(last, args, node)
        if name == "gradmend.super":
            return self._base_method(args, keywords, node)
        if last in ("deepcopy", "copy") and head == "copy" and args:
            return self.copied(args[0], {}, last == "deepcopy")
        if last == "partial" and args:
            return Partial(args[0], args[1:], keywords)
        if last in ("OrderedDict", "defaultdict"):
            return self.builtin("dict", args if last == "OrderedDict" else [], keywords, node)
        if last == "namedtuple":
            return unknown()
        if last in _FORGIVE:
            return Instance(None, "forgive")
        if last in _PASS:
            return self.builtin({"trange": "range"}.get(last, "list"), args, keywords, node)
        if last in _OPTIMIZERS:
            return self.make_optimizer(last, args, keywords, node)
        if head in ("math", "random", "os", "sys", "time", "json", "logging", "warnings", "re", "pathlib"):
            return unknown()
        if last in ("from_numpy",):
            return self.from_array(args[0], node) if args else unknown()
        return self.unknown_call(None, args, keywords, node)

    # --- torch

    def _torch(self, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        parts = name.split(".")
        last = parts[-1]
        if last in ("no_grad", "inference_mode", "enable_grad", "set_grad_enabled"):
            return self._grad_mode(last, args, keywords, node)
        if last in ("autocast", "amp", "GradScaler"):
            return Instance(None, "scaler" if last == "GradScaler" else "context")
        if last in _FORGIVE:
            return Instance(None, "forgive")
        if parts[1:2] == ["nn"]:
            return self._nn(parts[2:], args, keywords, node)
        if parts[1:2] == ["optim"]:
            if len(parts) == 3 and last[:1].isupper():
                return self.make_optimizer(last, args, keywords, node)
            return unknown()
        if parts[1:2] == ["autograd"] and len(parts) == 3:
            return self._autograd(last, args, keywords, node)
        if parts[1:2] == ["distributions"]:
            made = Instance(None, "dist")
            made.attrs = {f"arg{i}": v for i, v in enumerate([*args, *keywords.values()])}
            return made
        if last == "checkpoint" and args:
            return self._checkpoint(args, keywords, node)
        if last in ("compile", "script", "jit", "trace", "vmap") and args:
            return args[0]
        if last in ("compile", "script"):
            return Ext("builtins.iter")
        if last == "from_numpy" and args:
            return self.from_array(args[0], node)
        if last == "DataLoader" or (parts[1:2] == ["utils"] and last in ("DataLoader", "TensorDataset")):
            return self._loader(args) if last == "DataLoader" else unknown()
        if last in ("sparse_coo_tensor", "sparse_csr_tensor", "to_sparse"):
            made_tensor = self.apply("clone", node, {"self": Seq(list(args))}, shown=last)
            if isinstance(made_tensor, Tensor):
                made_tensor.sparse = "result"
            return made_tensor
        if parts[1:2] == ["func"] and last == "functional_call" and len(args) > 1:
            return self.all_kept("functional_call", args[1:], node)
        if len(parts) > 2 and parts[1] in ("linalg", "special"):
            return self.op(
                f"{parts[1]}_{last}" if table.op(f"{parts[1]}_{last}") else last, args, dict(keywords), node
            )
        if parts[1] == "distributed" and last in _COLLECTIVES and args:
            return self.write(args[0], "copy_", node, shown=f"{last}()", how="collective")
        if len(parts) > 2 and parts[1] in _NO_NAMESPACE:
            return unknown()
        if len(parts) == 3 and parts[1] == "Tensor" and args and isinstance(args[0], Tensor):
            return self.tensor_method(args[0], last, args[1:], keywords, node)
        if last == "Tensor" or last.endswith("Tensor"):
            return self.fresh(node)
        if table.is_inplace(last) and args:
            return self.in_place(args[0], last, args[1:], keywords, node, shown=f"{last}()")
        if len(parts) > 3 and parts[1] not in ("fft",):
            return self.unknown_call(None, args, keywords, node)
        if last[:1].isupper():
            return unknown()
        if last in ("detach", "clone", "numpy", "reshape", "flatten", "chunk", "split", "unbind") and args:
            first = args[0].as_tensor() if isinstance(args[0], Opaque) else args[0]
            return self.over(
                first,
                lambda v: (
                    self.tensor_method(
                        v.as_tensor() if isinstance(v, Opaque) else v, last, args[1:], keywords, node
                    )
                    if isinstance(v, (Tensor, Opaque))
                    else unknown()
                ),
            )
        if not args and "input" in keywords:
            keywords = dict(keywords)
            args = [keywords.pop("input")]
        return self.op(last, args, dict(keywords), node)

    def _nn(self, parts: list[str], args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        last = parts[-1]
        if parts[0] == "functional":
            return self._functional(last, args, keywords, node)
        if parts[0] == "init":
            if args and last.endswith("_"):
                with self.mode(False):
                    return self.write(args[0], "copy_", node, shown=f"init.{last}()")
            return unknown()
        if last in ("Parameter", "Buffer", "UninitializedParameter"):
            wants = keywords.get("requires_grad", args[1] if len(args) > 1 else None)
            grad = NO if isinstance(wants, Const) and wants.value is False else YES
            if wants is not None and not isinstance(wants, Const):
                grad = MAYBE
            if last == "Buffer":
                return args[0] if args else unknown()
            made = self.parameter("", grad, node)
            first = args[0] if args else keywords.get("data")
            if isinstance(first, Tensor) and len(first.storages) == 1:
                made.storages = first.storages  # a Parameter shares its data's memory
                made.storages[0].kind = "param"
            return made
        if parts[0] == "utils":
            if last == "parameters_to_vector":
                return self.apply("cat", node, {"tensors": args[0]} if args else {}, shown=last)
            if last == "vector_to_parameters" and len(args) > 1:
                with self.mode(False):
                    return self.write(args[1], "copy_", node, shown=last, how="swap")
            if last in ("weight_norm", "spectral_norm", "remove_weight_norm") and args:
                return args[0]
            return unknown()
        return self.make_module(f"torch.nn.{last}", args, keywords, node)

    def _functional(self, last: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        inplace = keywords.get("inplace")
        if args and inplace is not None and self.truthy(inplace) is True:
            return self.write(
                args[0],
                f"{last}_" if last != "dropout" else "mul_",
                node,
                shown=f"{last}(inplace=True)",
                flag=True,
            )
        if last.endswith("_") and args and table.is_inplace(last):
            return self.write(args[0], last, node, shown=f"{last}()")
        x = args[0] if args else keywords.get("input", unknown())

        def nth(i: int, key: str) -> Value:
            return args[i] if len(args) > i else keywords.get(key, NONE)

        if last == "linear":
            return self.linear(x, nth(1, "weight"), nth(2, "bias"), node)
        if last == "embedding":
            return self.embedding(x, nth(1, "weight"), nth(3, "max_norm"), node)
        if last in ("batch_norm", "instance_norm"):
            return self.batch_norm(x, nth(3, "weight"), nth(4, "bias"), node, last)
        if last in ("layer_norm", "group_norm", "rms_norm"):
            return self.norm(x, nth(2, "weight"), nth(3, "bias"), node, last)
        if last.startswith("conv") and last[-1] == "d":
            return self.apply(
                "conv2d", node, {"input": x, "weight": nth(1, "weight"), "bias": nth(2, "bias")}, shown=last
            )
        if last in ("dropout", "dropout2d", "alpha_dropout", "feature_dropout"):
            made = self.apply("dropout", node, {"input": x}, shown=last)
            return made
        if last == "one_hot":
            return self.fresh(node)
        if last.endswith(("pool2d", "pool1d", "pool3d")):
            return self.apply(
                "max_pool2d" if "max" in last else "avg_pool2d", node, {"self": x, "input": x}, shown=last
            )
        clean = {k: v for k, v in keywords.items() if k != "inplace"}
        if not args and "input" in clean:
            args = [clean.pop("input")]
        return self.op(last, args, clean, node)

    def _autograd(self, last: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        if last == "backward" and args:
            self.backward([t for _, t in self.tensors(args[0])], node, keywords)
            return NONE
        if last == "grad" and args:
            inputs = args[1] if len(args) > 1 else keywords.get("inputs", unknown())
            roots = [t for _, t in self.tensors(args[0])]
            self.backward(roots, node, keywords, inputs)
            create = keywords.get("create_graph")
            live = create is not None and not (isinstance(create, Const) and create.value is False)

            def one(_: Value) -> Value:
                made = self.fresh(node)
                if live and self.grad_mode is not False:
                    found = [((), t) for t in roots] + self.tensors(inputs)
                    made.node = self.record("grad", found, node)
                    made.grad, made.leaf = max((t.grad for t in roots), default=NO), False
                return made

            if isinstance(inputs, Seq):
                return Seq(
                    [one(v) for v in inputs.items],
                    "tuple",
                    one(inputs.rest) if inputs.rest is not None else None,
                )
            return Seq([one(inputs)], "tuple", one(inputs))
        if last == "Variable" and args:
            wants = keywords.get("requires_grad")
            if isinstance(args[0], Tensor) and isinstance(wants, Const) and wants.value is True:
                made = Tensor(args[0].storages, YES)
                made.origin = self.at(node)
                return made
            return args[0]
        return unknown()

    def _checkpoint(self, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        found = [pair for value in args[1:] for pair in self.tensors(value)]
        grad = self.strongest(found)
        made = self.record("checkpoint", found, node)
        made.sure = grad == YES
        if grad:
            for path, tensor in found:
                self.save(path, tensor, made, node, "checkpoint", "self", grad == YES)
        result = self.call_value(
            args[0],
            args[1:],
            {k: v for k, v in keywords.items() if k not in ("use_reentrant", "preserve_rng_state")},
            node,
        )
        if grad:
            for _, tensor in self.tensors(result):
                top = self.node_of(tensor)
                if top is not None and top.leaf is None:
                    top.parents.append(made)
        return result

    def _loader(self, args: list[Value]) -> Value:
        return Seq([], "loader", rest=unknown("batch"))

    def _grad_mode(self, last: str, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        if args and isinstance(args[0], Function):  # torch.no_grad(f)
            args[0].grad_mode = last == "enable_grad"
            return args[0]
        made = Instance(None, "grad_mode")
        on: bool | None = last == "enable_grad"
        if last in ("set_grad_enabled", "inference_mode") and (args or "mode" in keywords):
            value = args[0] if args else keywords["mode"]
            known = self.truthy(value)
            on = known if last == "set_grad_enabled" or known is None else not known
        made.attrs["mode"] = Const(on)
        if (
            last == "set_grad_enabled"
            and isinstance(self.statement, ast.Expr)
            and self.statement.value is node
        ):
            self.grad_mode = on
        return made

    # --- contexts

    def enter(self, value: Value) -> tuple[Value, Any]:
        """What `as` binds, and what to do on leaving."""
        for _, option in self.options(value):
            if isinstance(option, Instance):
                if option.nn == "grad_mode":
                    mode = option.attrs.get("mode")
                    self.grad_mode = mode.value if isinstance(mode, Const) else None
                elif option.nn == "forgive":
                    before = self.healed
                    self.healed = True
                    return option, partial(setattr, self, "healed", before)
                elif option.cls is not None:
                    start, end = self.method_of(option, "__enter__"), self.method_of(option, "__exit__")
                    site = self.statement or ast.Pass()
                    inner = self.call_value(start, [], {}, site) if start is not None else option
                    return inner, partial(
                        self.call_value, end, [NONE, NONE, NONE], {}, site
                    ) if end is not None else None
            if isinstance(option, Seq) and option.kind == "generator":
                return (option.items[0] if option.items else unknown()), None
        return value, None

    # --- objects that are built in

    def builtin_method(
        self, owner: Value, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if isinstance(owner, Instance):
            return self._instance_method(owner, name, args, keywords, node)
        if isinstance(owner, Class) and name == "apply":
            return self.apply_function(owner, args, keywords, node)
        if isinstance(owner, Seq):
            return self._seq_method(owner, name, args)
        if isinstance(owner, Dict):
            return self._dict_method(owner, name, args, keywords)
        if isinstance(owner, Opaque):
            return self._unknown_method(owner, name, args, keywords, node)
        return unknown()

    def _instance_method(
        self, owner: Instance, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if owner.nn == "optim":
            return self.optimizer_method(owner, name, args, keywords, node)
        if owner.nn == "ctx":
            return self.ctx_method(owner, name, args, node)
        if owner.nn == "scaler":
            if name == "scale" and args:
                return (
                    self.apply("mul", node, {"self": args[0], "other": Const(1.0)})
                    if self.tensors(args[0])
                    else unknown()
                )
            if name == "step" and args:
                return self.call_value(self.attribute(args[0], "step", node), args[1:], {}, node)
            return unknown()
        if owner.nn == "dist":
            return self._distribution(owner, name, args, node)
        if owner.nn == "ndarray":
            return self._array_method(owner, name, args, node)
        if owner.nn == "super":
            return unknown()
        made = self.module_method(owner, name, args, keywords, node)
        if made is not None:
            return made
        if name in ("backward", "manual_backward") and args:
            self.backward([t for _, t in self.tensors(args[0])], node, keywords)
            return NONE
        return self.unknown_call(None, args, keywords, node)

    def _unknown_method(
        self, owner: Opaque, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        if name == "parameters":
            return Seq([weights := self.parameters_of_opaque(owner)], "iterator", weights)
        if name in ("backward", "manual_backward"):
            roots = [t for _, t in self.tensors(args[0])] if args else [owner.as_tensor()]
            self.backward(roots, node, keywords)
            return NONE
        if name in ("to", "cuda", "cpu", "train", "eval", "float", "half", "double"):
            return owner
        if name == "step" and "opt" in owner.name.lower():
            self._unseen_step(owner, node)
            return NONE
        if name == "zero_grad":
            for model in self.models:
                if _belongs(owner.name, model.name, len(self.models)):
                    for storage in self.parameters_of_opaque(model).storages:
                        storage.has_grad = False
            return NONE
        # A method of an object that was handed in: `self.model(x)` is its own model, `trainer.loss(x)` may be anything.
        part = owner.attrs.get(name)
        callee = owner if name == "forward" else part if isinstance(part, Opaque) else None
        return self.unknown_call(callee, args, keywords, node)

    def _unseen_step(self, owner: Opaque, node: ast.AST) -> None:
        """An optimizer and models that were handed in: by their names, `opt_d` steps `d`, and one of each belong together."""
        with self.mode(False):
            for model in self.models:
                weights = self.parameters_of_opaque(model)
                if weights.storages[0].has_grad and _belongs(owner.name, model.name, len(self.models)):
                    self.write(
                        weights, "add_", node, shown=f"{owner.name}.step", name=f"{model.name}'s parameters"
                    )

    def _distribution(self, owner: Instance, name: str, args: list[Value], node: ast.AST) -> Value:
        if name in ("sample", "sample_n"):
            return self.fresh(node)
        held = Seq([*owner.attrs.values(), *args])
        return self.all_kept(f"{name}", [held], node)

    def _array_method(self, owner: Instance, name: str, args: list[Value], node: ast.AST) -> Value:
        if name in ("fill", "sort", "partition", "put", "itemset", "resize"):
            self.write(owner.attrs["memory"], "fill_", node, shown=f".{name}()")
            return NONE
        if name in ("reshape", "ravel", "view", "squeeze", "transpose", "swapaxes"):
            return owner
        return self.numpy_result()

    def _numpy(self, last: str, args: list[Value], node: ast.AST) -> Value:
        first = args[0] if args else None
        if (
            last in ("copyto", "put", "place", "putmask", "fill_diagonal")
            and isinstance(first, Instance)
            and first.nn == "ndarray"
        ):
            self.write(first.attrs["memory"], "copy_", node, shown=f"np.{last}()")
            return NONE
        if last in ("asarray", "ravel", "reshape", "squeeze", "atleast_1d", "ascontiguousarray"):
            if isinstance(first, Instance) and first.nn == "ndarray":
                return first
            if isinstance(first, Tensor):
                return self.array_of(self.behind(first, "numpy"))
        return self.numpy_result()

    def _seq_method(self, owner: Seq, name: str, args: list[Value]) -> Value:
        if name in ("append", "appendleft", "add") and args:
            self.share(args[0])
            if len(owner.items) < 24:
                owner.items.append(args[0])
            else:
                owner.items[-1] = args[0]
        elif name == "insert" and len(args) > 1:
            self.share(args[1])
            owner.items.insert(0, args[1])
        elif name == "extend" and args:
            owner.items += self.iterate(args[0], None)[: max(0, 24 - len(owner.items))]
        elif name in ("pop", "popleft"):
            if owner.items and owner.rest is None:
                at = (
                    0
                    if name == "popleft" or (args and isinstance(args[0], Const) and args[0].value == 0)
                    else -1
                )
                # Taken back by no other arm: the list is left as it is inside a branch.
                return owner.items[at] if self.journals else owner.items.pop(at)
            return owner.rest or unknown()
        elif name == "clear":
            # Also where it is one arm of a branch: what the list held last time is then rarely meant again.
            owner.items.clear()
            owner.rest = None
        elif name == "copy":
            return Seq(list(owner.items), owner.kind, owner.rest)
        elif name in ("index", "count"):
            return unknown()
        return NONE

    def _dict_method(self, owner: Dict, name: str, args: list[Value], keywords: dict[str, Value]) -> Value:
        rest = [owner.rest] if owner.rest is not None else []
        if name == "items":
            pairs: list[Value] = [Seq([Const(k), v], "tuple") for k, v in owner.items.items()]
            return Seq(pairs + [Seq([unknown("key"), v], "tuple") for v in rest], "iterator")
        if name == "values":
            return Seq([*owner.items.values(), *rest], "iterator")
        if name == "keys":
            return Seq([Const(k) for k in owner.items], "iterator", unknown() if rest else None)
        if name in ("get", "pop", "setdefault") and args:
            key = args[0]
            if isinstance(key, Const) and isinstance(key.value, (str, int)) and key.value in owner.items:
                return owner.items[key.value]
            if name == "setdefault" and len(args) > 1 and isinstance(key, Const):
                self.store(owner.items, key.value, args[1])
                return args[1]
            return owner.rest or (args[1] if len(args) > 1 else unknown())
        if name == "update":
            for value in args:
                if isinstance(value, Dict):
                    for k, v in value.items.items():
                        self.store(owner.items, k, v)
            for k, v in keywords.items():
                self.store(owner.items, k, v)
        if name == "copy":
            return Dict(dict(owner.items), owner.rest)
        return NONE

    def _base_method(self, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """super().method(...) where the base is torch's: [self, base, method, *args]."""
        me, base, method = args[0], args[1], args[2]
        assert isinstance(me, Instance) and isinstance(base, Const) and isinstance(method, Const)
        rest = args[3:]
        if method.value == "__init__":
            if base.value and "Function" not in base.value:
                self.make_module(str(base.value), rest, keywords, node, me)
                if me.nn == "Module":
                    me.nn = ""
            return NONE
        if method.value in ("forward", "__call__"):
            return self.module_call(me, rest, keywords, node)
        if base.value.startswith("torch.optim"):
            return self.optimizer_method(me, str(method.value), rest, keywords, node)
        made = self.module_method(me, str(method.value), rest, keywords, node)
        return made if made is not None else unknown()


def _belongs(optimizer: str, model: str, models: int) -> bool:
    bare = re.sub(r"optimi[sz]er|optim|opt|self|[._]", "", optimizer.lower())
    name = re.sub(r"self|model|network|net|[._]", "", model.lower())
    return models == 1 or (
        bool(bare) and bool(name) and (bare == name or bare[0] == name[0] == bare or name in bare)
    )


__all__ = ["Alt", "Bound", "External", "ModuleValue", "snake"]
