"""Float64 differences of the executed forward: the oracle that trusts no graph.

The program runs in float64 with its leaves moved a little along a direction when the forward first uses
them, up to a backward call, whose loss is kept. What the author stopped (`detach`, `no_grad`)
stays at the values of the unmoved run, so that a stopped gradient is zero here as well.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode


def in_float64() -> None:
    """Make the program compute in float64, whatever it says."""
    torch.set_default_dtype(torch.float64)
    names: Any = torch
    names.float32 = names.float = torch.float64
    names.Tensor.float = torch.Tensor.double
    names.FloatTensor = torch.DoubleTensor


class Nudge(TorchDispatchMode):
    """Moves leaves by `step` along the direction of `seed` (one leaf only, if given) and replays stops."""

    def __init__(
        self,
        step: float,
        seed: int,
        only: str | None,
        tape: str | None,
        replay: bool,
        forgive: Any,
        parameters: dict[int, tuple[int, torch.Tensor]],
    ) -> None:
        super().__init__()
        self.step, self.seed, self.only = step, seed, only
        self.leaves: dict[int, tuple[str, torch.Tensor]] = {}
        self.parameters = parameters
        self.path, self.replay = tape, replay
        self.tape: list[Any] = []
        self.cursor = 0
        self.aliases: dict[
            int, tuple[int, torch.Tensor]
        ] = {}  # detached tensors, with their place on the tape
        self.used_to_write: set[int] = set()  # those that were handed to numpy or written to: doors, no stops
        self.forgive = forgive
        self.open_doors = False  # `.detach()` is used to edit the graph's memory: it is no stop then
        self.inside = 0  # custom Functions run their forward without grad mode: that is no stop
        self.over = False  # the loss is there: from now on nothing is moved or stopped
        self.armed = True  # the call in question is the next one: leaves are met and moved
        self.known: dict[str, torch.Tensor] = {}  # leaves of earlier calls, by name
        self.met: dict[str, torch.Tensor] = {}  # the value that each leaf had when it was first used
        self.resync: dict[str, torch.Tensor] = {}  # values to start the call from
        if replay and tape:
            with open(tape, "rb") as file:
                self.tape = pickle.load(file)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else each child imports all of dynamo, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.over:
            return func(*args, **kwargs)
        quiet = self.inside > 0 or (self.forgive is not None and self.forgive.quiet)
        if torch.is_grad_enabled() or quiet:
            for value in [*args, *kwargs.values()]:
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    self._meet(tensor)
        if func._schema.is_mutable and args:
            self.handed_out(args[0])
        out = func(*args, **kwargs)
        if not quiet and self._stops(func, args):
            self._stop(func, out)
        return out

    def _meet(self, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad or not _is_leaf(tensor):
            return
        if id(tensor) in self.leaves or not tensor.is_floating_point():
            return
        if tensor._is_view() and tensor._base is not None and tensor._base.requires_grad:
            return  # a view taken of a leaf without grad mode passes for a leaf too (2.13): its base is the one
        known = self.parameters.get(id(tensor))
        others = sum(not name.startswith("parameter") for name, _ in self.leaves.values())
        name = f"parameter {known[0]}" if known is not None else f"leaf {others}"
        self.leaves[id(tensor)] = (name, tensor)
        if not self.armed:
            return
        with torch.no_grad():
            if name in self.resync and self.resync[name].shape == tensor.shape:
                tensor.data.copy_(self.resync[name])
            self.met[name] = tensor.data.clone()
        if self.only is not None and name != self.only:
            return
        direction = way(self.seed, name, tuple(tensor.shape))
        with torch.no_grad():
            tensor.data.add_(torch.from_numpy(np.asarray(direction)).reshape(tensor.shape), alpha=self.step)

    def next_call(self, armed: bool) -> None:
        """A backward call is over: the next forward meets its leaves anew."""
        self.known.update(dict(self.leaves.values()))
        self.leaves, self.met = {}, {}
        self.armed, self.over = armed, False

    def find(self, name: str) -> torch.Tensor | None:
        """A leaf that the forward has used."""
        for own, tensor in self.leaves.values():
            if own == name:
                return tensor
        return self.known.get(name)

    def _stops(self, func: Any, args: Any) -> bool:
        if not torch.is_grad_enabled():
            return not self._edits_graph(func, args)
        detach = func is torch.ops.aten.detach.default and not self.open_doors
        return bool(detach and isinstance(args[0], torch.Tensor) and args[0].requires_grad)

    @staticmethod
    def _edits_graph(func: Any, args: Any) -> bool:
        """A write under no_grad into a tensor of the graph changes what the forward computes."""
        if not func._schema.is_mutable or not args or not isinstance(args[0], torch.Tensor):
            return False
        return bool(args[0].requires_grad and not _is_leaf(args[0]))

    def _stop(self, func: Any, out: Any) -> None:
        results = [
            t for t in (out if isinstance(out, (list, tuple)) else (out,)) if isinstance(t, torch.Tensor)
        ]
        with torch.no_grad():
            for tensor in results:
                if not tensor.is_floating_point() or tensor.layout != torch.strided:
                    continue
                if self.replay:
                    kept = self.tape[self.cursor] if self.cursor < len(self.tape) else None
                    if kept is not None and kept.shape == tuple(tensor.shape):
                        self._freeze(func, tensor)
                    self.cursor += 1
                else:
                    if _is_alias(func):
                        self.aliases[id(tensor)] = len(self.tape), tensor
                    self.tape.append(tensor.clone().numpy())

    def handed_out(self, tensor: Any) -> None:
        """A detached alias that is written through, or may be: what it was taken from changes with it."""
        known = self.aliases.get(id(tensor))
        if known is not None and known[1] is tensor:
            self.used_to_write.add(known[0])

    def _freeze(self, func: Any, tensor: torch.Tensor) -> None:
        value = torch.from_numpy(self.tape[self.cursor])
        if _is_alias(func):
            # The alias alone must stand still; what it was taken from goes on moving.
            tensor.set_(value.clone())  # type: ignore[call-overload]
        else:
            tensor.data.copy_(value)

    def stop_in_place(self, tensor: torch.Tensor) -> None:
        """`detach_()` of a view, which PyTorch refuses: the same stop, in the tensor's own memory."""
        self.over = True
        with torch.no_grad():
            if not self.replay:
                self.tape.append(tensor.detach().clone().numpy())
            else:
                tensor.data.copy_(torch.from_numpy(self.tape[self.cursor]))
                self.cursor += 1
        self.over = False

    def watch_functions(self) -> None:
        plain: Any = torch.autograd.Function.__dict__["apply"]

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            self.inside += 1
            try:
                return plain.__get__(None, cls)(*args, **kwargs)
            finally:
                self.inside -= 1

        torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment,method-assign]

    def watch_data(self) -> None:
        """`.data` reaches us as a detach, but it is a door into the graph's own memory, not a stop."""
        plain: Any = torch.Tensor.data

        def get(tensor: torch.Tensor) -> Any:
            was, self.over = self.over, True
            try:
                return plain.__get__(tensor)
            finally:
                self.over = was

        def put(tensor: torch.Tensor, value: Any) -> None:
            plain.__set__(tensor, value)

        torch.Tensor.data = property(get, put)  # type: ignore[assignment]
        out: Any = torch.Tensor.numpy

        def numpy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.handed_out(tensor)
            return out(tensor, *args, **kwargs)

        torch.Tensor.numpy = numpy  # type: ignore[assignment,method-assign]

    def finish(self) -> None:
        if self.path and not self.replay:
            for place in self.used_to_write:
                self.tape[place] = None
            with open(self.path, "wb") as file:
                pickle.dump(self.tape, file)


def way(seed: int, name: str, shape: tuple[int, ...]) -> Any:
    """The direction in which a leaf is moved: the same in every process."""
    return np.random.default_rng([seed, *name.encode()]).standard_normal(shape)


def _is_alias(func: Any) -> bool:
    """`detach` and views: the result is the operand's own memory."""
    schema = func._schema
    return not schema.is_mutable and any(r.alias_info is not None for r in schema.returns)


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view whose base was written: PyTorch refuses even to say
        return False
