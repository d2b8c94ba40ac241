"""The two sides of a proof by differences: how the loss moves, and what the gradient says it does."""

from __future__ import annotations

from typing import Any

import torch

from gradmend.fix.proof.differences import Nudge, in_float64, way
from gradmend.fix.proof.forgive import Forgive
from gradmend.fix.proof.record import Enough, Recorder, _leaves


def enter(
    mode: str, request: dict[str, Any], recorder: Recorder, stack: Any, extra: Any, finish: Any
) -> None:
    in_float64()
    forgive = Forgive() if mode == "differences" else None
    nudge = Nudge(
        request.get("step", 0.0),
        request.get("seed", 0),
        request.get("only"),
        request.get("tape"),
        request.get("replay", False),
        forgive,
        recorder.parameters,
    )
    nudge.open_doors = request.get("doors", False)
    if forgive is not None:
        forgive.nudge = nudge
        stack.enter_context(forgive)
    stack.enter_context(nudge)
    nudge.watch_data()
    nudge.watch_functions()
    recorder._depth = 1  # the recorder's own hooks are not needed here
    finish.append(nudge.finish)
    homes: list[Any] = [torch.autograd.graph, torch.autograd]
    run = homes[0]._engine_run_backward

    def engine(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        nudge.over = True
        extra["loss"] = _loss(outputs, args)
        extra["leaves"] = {name: list(t.shape) for name, t in nudge.leaves.values()}
        extra["float64"] = all(t.dtype == torch.float64 for t in outputs if isinstance(t, torch.Tensor))
        extra["inputs"] = not kwargs.get("accumulate_grad", False)
        if mode == "differences":
            raise Enough
        names = recorder._names()
        slopes = extra["slopes"] = {}
        extra["names"] = {name: names.get(id(t), name) for name, t in nudge.leaves.values()}
        seeds = request["seeds"]
        for leaf in _leaves(outputs):
            if id(leaf) not in nudge.leaves:
                continue
            name = nudge.leaves[id(leaf)][0]

            def took(grad: torch.Tensor, name: str = name) -> None:
                flat = grad.detach().numpy()
                for seed in seeds:
                    slopes[(seed, name)] = float((flat * way(seed, name, flat.shape)).sum())

            leaf.register_hook(took)
        run(outputs, *args, **kwargs)
        raise Enough

    for home in homes:
        home._engine_run_backward = engine


def _loss(outputs: Any, args: tuple[Any, ...]) -> float:
    total = 0.0
    for out, grad in zip(outputs, args[0], strict=False):
        with torch.no_grad():
            total += float(out.sum() if grad is None else (out * grad).sum())
    return total
