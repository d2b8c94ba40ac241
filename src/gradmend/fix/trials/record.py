"""Inside a trial run: what every backward call was given and what it sent to each leaf."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._guards import detect_fake_mode
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradmend.capture.graph.nodes import edges

_CALLS_WITH_LOCALS = 8
_MOST_LOCALS = 100
_MOST_OF_A_LOCAL = 20_000  # elements
_MOST = 200_000  # elements kept of one tensor; past that, an even sample of them


class Enough(BaseException):
    """As many backward calls as were asked for have run: the trial ends here."""


class Recorder:
    def __init__(self, limit: int, roots: list[str], retain: bool = False, cut: bool = False) -> None:
        self.cut = cut  # send no gradient into what PyTorch would have freed
        self._spent: set[int] = set()  # the nodes of backward calls that would have freed them
        self.leaf_writes: list[Any] = []  # refused ones that were made all the same
        self.limit = limit
        self.roots = [os.path.realpath(r) + os.sep for r in roots]
        self.retain = retain
        self.calls: list[dict[str, Any]] = []
        self.modules: list[torch.nn.Module] = []
        self.parameters: dict[int, tuple[int, torch.Tensor]] = {}
        self.twice = 0  # steps of an optimizer after one with no backward between
        self.steppers: dict[tuple[str, int], set[int]] = {}  # lines that step: the optimizers
        self._stepped: dict[int, int] = {}  # an optimizer -> the backward calls before its last step
        self.live: set[tuple[str, int]] = set()  # lines that edit a tensor of the graph behind its back
        self._depth = 0
        self._seen: dict[int, tuple[int, int, float]] = {}  # the leaves at the end of the last backward
        self._walked: list[
            tuple[Any, dict[int, float]]
        ] = []  # each backward: its line, and its leaves' first uses
        self._files: dict[str, bool] = {}
        self.began = time.process_time()

    # -- installation ----------------------------------------------------------------------------
    def install(self, mode: str) -> None:
        import torch.autograd.graph

        homes: list[Any] = [torch.autograd.graph, torch.autograd]
        engine = homes[0]._engine_run_backward

        def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            return self._backward(engine, outputs, args, kwargs)

        for home in homes:
            home._engine_run_backward = run
        self._watch_modules()
        register_optimizer_step_post_hook(self._step)

    def _step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        done = len(self.calls)
        at = next(self.user_frames(), None)
        if at is not None:
            self.steppers.setdefault((at["file"], at["line"]), set()).add(id(optimizer))
        self.twice += self._stepped.get(id(optimizer)) == done
        self._stepped[id(optimizer)] = done

    def _watch_modules(self) -> None:
        made = self.modules
        for name in ("__init__", "__setstate__"):
            plain = getattr(torch.nn.Module, name)

            def noted(module: torch.nn.Module, *a: Any, _plain: Any = plain, **k: Any) -> Any:
                if len(made) < 20_000 and next(self.user_frames(), None):  # the program's, not ours
                    made.append(module)
                return _plain(module, *a, **k)

            setattr(torch.nn.Module, name, noted)
        plain_new = torch.nn.Parameter.__new__
        seen = self.parameters

        def new(cls: Any, *a: Any, **k: Any) -> Any:
            made_one = plain_new(cls, *a, **k)
            if next(self.user_frames(), None):
                seen.setdefault(id(made_one), (len(seen), made_one))
            return made_one

        torch.nn.Parameter.__new__ = new  # type: ignore[method-assign]

    # -- one backward call -------------------------------------------------------------------------
    def _backward(self, engine: Any, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (
            self._depth or detect_fake_mode(list(outputs)) is not None
        ):  # a compiler traces, or a backward of the program's takes a gradient itself
            if self._depth and self.retain and len(args) > 1:
                args = (args[0], True, *args[2:])
            return engine(outputs, *args, **kwargs)
        frees = len(args) > 1 and not args[1]
        if self.retain and len(args) > 1:
            args = (args[0], True, *args[2:])
        call: dict[str, Any] = {
            "roots": [keep(t) for t in outputs if isinstance(t, torch.Tensor)],
            "stack": list(self.user_frames()),
            "at": time.process_time() - self.began,
            "grads": {},
            "dtype": [str(t.dtype) for t in outputs if isinstance(t, torch.Tensor)],
        }
        if len(self.calls) < _CALLS_WITH_LOCALS:
            call["locals"] = self._locals()
        self.before(outputs, args)
        call["made"] = youngest()
        reached = leaves_of(outputs)
        leaves = reached.leaves
        self._meet_writes(reached)
        outdated = self._outdated(reached)
        call["stale"] = bool(outdated)
        call["again"] = self._again(reached, outdated, [(f["file"], f["line"]) for f in call["stack"][:1]])
        self.calls.append(call)
        accumulate = kwargs.get("accumulate_grad", False)
        hooks: list[Any] = []
        names = self._names()
        if accumulate:
            twins: dict[str, int] = {}
            for leaf in leaves:
                shape = "nested" if leaf.is_nested else str(list(leaf.shape))
                twins[shape] = twins.get(shape, -1) + 1
                key = self._key(leaf, f"{shape} {twins[shape]}")

                def took(grad: torch.Tensor, key: str = key) -> None:
                    call["grads"][key] = keep(grad)

                call.setdefault("names", {})[key] = names.get(id(leaf), key)
                hooks.append(leaf.register_hook(took))
        if self.cut:
            hooks += self._boundary(outputs)
        self._depth += 1
        try:
            result = engine(outputs, *args, **kwargs)
        except BaseException:
            call["failed"] = True
            raise
        finally:
            self._depth -= 1
            for hook in hooks:
                hook.remove()
        call["after"] = time.process_time() - self.began
        call["done"] = youngest()
        if self.cut and frees:
            self._spent |= {n._sequence_nr() for n in _nodes(outputs) if not hasattr(n, "variable")}
        self._seen = {id(t): _stamp(t) for _, t in self.parameters.values()} | {
            id(t): _stamp(t) for t in leaves
        }
        if not accumulate:
            for order, grad in enumerate(result):
                call["grads"][f"input {order}"] = None if grad is None else keep(grad)
        if len(self.calls) >= self.limit:
            raise Enough
        return result

    def _meet_writes(self, reached: Reached) -> None:
        """Tell the writes since the last backward how this graph uses what they wrote."""
        done, last = sum(not c.get("failed") for c in self.calls), self._last()
        for write in self.leaf_writes:
            if write.calls == done:
                latest = reached.latest.get(write.leaf, -1)
                write.met(reached.oldest, latest, -1 if last is None else last)

    def _boundary(self, outputs: Any) -> list[Any]:
        """Hooks on the nodes where this backward enters what an earlier one used up: no gradient goes on from there."""
        return [
            below.register_prehook(_nothing)
            for node in _nodes(outputs)
            if node._sequence_nr() not in self._spent
            for below, _ in edges(node)
            if below is not None and not hasattr(below, "variable") and below._sequence_nr() in self._spent
        ]

    def _outdated(self, reached: Reached) -> list[torch.Tensor]:
        """Leaves updated since the last backward that were used before it, by nodes which this one goes through."""
        last = self._last()
        if last is None or reached.oldest > last:
            return []
        old = [t for t in reached.leaves if reached.used[id(t)] <= last and id(t) in self._seen]
        return [t for t in old if self._seen[id(t)] != _stamp(t)]

    def _again(self, reached: Reached, outdated: list[torch.Tensor], line: Any) -> str:
        """Did this line's backward go through the same use of an updated leaf before, in an earlier iteration?
        "once": the leaf was used only then; "carried": in later iterations as well."""
        earlier = [used for where, used in self._walked if where == line]
        self._walked.append((line, reached.used))
        both = [t for t in outdated if any(used.get(id(t)) == reached.used[id(t)] for used in earlier)]
        if not both:
            return ""
        last = self._last() or 0
        return "once" if all(reached.latest[id(t)] <= last for t in both) else "carried"

    def _last(self) -> int | None:
        """The youngest node when the last backward ended."""
        return next((c["done"] for c in reversed(self.calls) if "done" in c), None)

    def before(self, outputs: Any, args: tuple[Any, ...]) -> None:
        """For the runs that need only the loss."""

    def _key(self, leaf: torch.Tensor, place: str) -> str:
        """Parameters by the order they were made in; other leaves by the order the graph holds them in."""
        if id(leaf) in self.parameters:
            return f"parameter {self.parameters[id(leaf)][0]}"
        return f"leaf {place}"

    def _names(self) -> dict[int, str]:
        """What the program calls its leaves, for people."""
        found: dict[int, str] = {}
        frame = sys._getframe(1)
        while frame is not None:
            if self._mine(frame.f_code.co_filename):
                for name, value in [*frame.f_locals.items(), *frame.f_globals.items()]:
                    if isinstance(value, torch.nn.Module) and name != "self":
                        for path, parameter in value.named_parameters():
                            found.setdefault(id(parameter), f"{name}.{path}")
                    elif isinstance(value, torch.Tensor):
                        found.setdefault(id(value), name)
            frame = frame.f_back  # type: ignore[assignment]
        return found

    def _locals(self) -> dict[str, Any]:
        """The tensors that the variables of the program's functions hold, now that a backward begins: names of one
        tensor show here which of them a write reaches."""
        found: dict[str, Any] = {}
        frame: Any = sys._getframe(1)
        while frame is not None and len(found) < _MOST_LOCALS:
            if self._mine(frame.f_code.co_filename) and frame.f_locals is not frame.f_globals:
                home = frame.f_code.co_name
                for name, tensor in _tensors(dict(frame.f_locals)):
                    if tensor.layout == torch.strided and tensor.numel() <= _MOST_OF_A_LOCAL:
                        found.setdefault(f"{name} of {home}", keep(tensor))
            frame = frame.f_back
        return found

    # -- places ------------------------------------------------------------------------------------
    def _mine(self, file: str) -> bool:
        known = self._files.get(file)
        if known is None:
            known = self._files[file] = self._below(file)
        return known

    def _below(self, file: str) -> bool:
        if not os.path.isabs(file):
            return False  # "<frozen runpy>", "<string>"
        return any(file.startswith(root) or os.path.realpath(file).startswith(root) for root in self.roots)

    def user_frames(self) -> Iterator[dict[str, Any]]:
        frame: Any = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if self._mine(code.co_filename):
                yield {"file": code.co_filename, "line": frame.f_lineno, "function": code.co_name}
            frame = frame.f_back

    # -- the end -----------------------------------------------------------------------------------
    def state(self, namespace: dict[str, Any]) -> dict[str, Any]:
        """What the program leaves behind: modules strictly, plain tensors it named for comparison."""
        kept: dict[str, Any] = {}
        for order, module in enumerate(self.modules):
            own = {**getattr(module, "_parameters", {}), **getattr(module, "_buffers", {})}
            for name, tensor in own.items():
                if isinstance(tensor, torch.Tensor):
                    kept[f"{type(module).__name__} {order}.{name}"] = keep(tensor)
        for order, tensor in self.parameters.values():
            kept[f"parameter {order}"] = keep(tensor)
        named = {f"{n}": keep(v) for n, v in _tensors(namespace)}
        return {"modules": kept, "named": named}


def keep(tensor: torch.Tensor) -> Any:
    """A copy as numpy float64 (complex as pairs); a sample where it is large."""
    with torch.no_grad():
        parts = _parts(tensor.detach())
        flat = torch.cat([_flat(p) for p in parts]) if len(parts) > 1 else _flat(parts[0])
        if flat.numel() > _MOST:
            flat = flat[:: -(-flat.numel() // _MOST)]
        return np.array(flat.to("cpu", torch.float64).numpy(), copy=True)


def _parts(plain: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors that hold its values; of a nested one also where each row begins."""
    if plain.is_nested:
        if plain.layout == torch.jagged:
            return [plain.values(), plain.offsets()]  # type: ignore[attr-defined]
        return list(plain.unbind()) or [torch.zeros(0)]
    return [plain if plain.layout == torch.strided else plain.to_dense()]


def _flat(plain: torch.Tensor) -> torch.Tensor:
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    return plain.reshape(-1)


def _stamp(tensor: torch.Tensor) -> tuple[int, int, float]:
    with torch.no_grad():
        plain = tensor.detach()
        dense = plain.layout == torch.strided and not plain.is_nested
        total = float(plain.sum()) if dense and not plain.is_complex() else 0.0
        return tensor.data_ptr() if dense else 0, tensor._version, total


def youngest() -> int:
    """The number of the newest node of this thread's graphs: they are counted as they are made."""
    with torch.enable_grad():
        node: Any = torch.ones((), requires_grad=True).neg().grad_fn
    return -1 if node is None else int(node._sequence_nr())  # none in inference mode


@dataclass(frozen=True, slots=True)
class Reached:
    """The leaves that a backward reaches, in the order of the graph; when each was first and last used, and the oldest
    node's number."""

    leaves: list[torch.Tensor]
    used: dict[int, float]
    latest: dict[int, float]
    oldest: float


def _nothing(grads: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if g is None else torch.zeros_like(g) for g in grads)


def _nodes(outputs: Any) -> Iterator[Any]:
    """Every node that a backward from these goes through."""
    stack = [
        n for out in outputs if (n := getattr(out, "grad_fn", None) or getattr(out, "node", None)) is not None
    ]
    seen: set[Any] = set(stack)
    while stack:
        node = stack.pop()
        yield node
        for below, _ in edges(node):
            if below is not None and below not in seen:
                seen.add(below)
                stack.append(below)


def leaves_of(outputs: Any) -> Reached:
    found: dict[int, torch.Tensor] = {}
    used: dict[int, float] = {}
    latest: dict[int, float] = {}
    oldest = float("inf")
    seen: set[Any] = set()
    stack: list[Any] = []
    for out in reversed(list(outputs)):
        node = getattr(out, "grad_fn", None) or getattr(out, "node", None)
        if node is None and isinstance(out, torch.Tensor) and out.requires_grad:
            found[id(out)] = out
        stack.append(node)
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            found.setdefault(id(leaf), leaf)
        else:
            oldest = min(oldest, node._sequence_nr())
            for below, _ in edges(node):
                owner = getattr(below, "variable", None)
                if isinstance(owner, torch.Tensor):
                    used[id(owner)] = min(used.get(id(owner), float("inf")), node._sequence_nr())
                    latest[id(owner)] = max(latest.get(id(owner), -1), node._sequence_nr())
        stack.extend(n for n, _ in reversed(edges(node)))
    first, last = ({i: numbers.get(i, float("inf")) for i in found} for numbers in (used, latest))
    return Reached(list(found.values()), first, last, oldest)


def _tensors(namespace: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in list(namespace.items()):
        if name.startswith("_"):
            continue
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)) and len(value) < 200:
            yield from ((f"{name}[{i}]", v) for i, v in enumerate(value) if isinstance(v, torch.Tensor))
        elif isinstance(value, dict) and len(value) < 200:
            yield from ((f"{name}[{k!r}]", v) for k, v in value.items() if isinstance(v, torch.Tensor))
