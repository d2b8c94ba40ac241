"""The two sides of a proof by differences: how the loss of a backward call moves, and what the gradient says it does.

The edited program (`slopes`) runs as it is and writes down, for each backward call, its loss, its gradient along each
direction, and the gradient itself. The original (`differences`) is given those gradients in its earlier calls instead of
its own, which may be wrong or may not exist: so both stand at equal parameters when the call in question is made.
"""

from __future__ import annotations

import pickle
from typing import Any

import torch

from gradmend.fix.trials.differences import Nudge, in_float64, way
from gradmend.fix.trials.forgive import Forgive
from gradmend.fix.trials.record import Enough, Recorder, leaves_of, youngest


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
    engine = (
        _moved(nudge, request, extra)
        if mode == "differences"
        else _told(nudge, request, extra, recorder, run)
    )
    for home in homes:
        home._engine_run_backward = engine


def _moved(nudge: Nudge, request: dict[str, Any], extra: dict[str, Any]) -> Any:
    """The original: earlier calls get the edited program's gradients; the loss of the one asked for is kept."""
    wanted = request.get("call", 1)
    given: list[dict[str, Any]] = []
    if wanted > 1:
        nudge.armed = False
        with open(request["given"], "rb") as file:
            given = pickle.load(file)
        nudge.resync = given[wanted - 1]["values"] if request.get("resync") else {}
    made = 0

    def engine(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal made
        made += 1
        nudge.over = True
        if made == wanted:
            extra.update(_heard(nudge, outputs, args, kwargs))
            raise Enough
        with torch.no_grad():
            for name, grad in given[made - 1]["grads"].items():
                leaf = nudge.find(name)
                if leaf is not None:
                    leaf.grad = grad.clone() if leaf.grad is None else leaf.grad + grad
        nudge.next_call(armed=made + 1 == wanted)
        return ()

    return engine


def _told(nudge: Nudge, request: dict[str, Any], extra: dict[str, Any], recorder: Recorder, run: Any) -> Any:
    """The edited program: what its gradient says of each of the first calls."""
    most = request.get("calls", 1)
    extra["told"] = []
    kept: list[dict[str, Any]] = []
    newest = -1  # sequence number of the youngest node when the last call was over

    def save() -> None:
        if request.get("given"):
            with open(request["given"], "wb") as file:
                pickle.dump(kept, file)

    def engine(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal newest
        nudge.over = True
        told = _heard(nudge, outputs, args, kwargs)
        names = recorder._names()
        slopes = told["slopes"] = {}
        told["names"] = {name: names.get(id(t), name) for name, t in nudge.leaves.values()}
        reached = leaves_of(outputs)
        leaves = reached.leaves
        told["fresh"] = reached.oldest > newest
        mine: dict[str, Any] = {}
        hooks = []
        for leaf in leaves:
            if id(leaf) not in nudge.leaves:
                continue
            name = nudge.leaves[id(leaf)][0]

            def took(grad: torch.Tensor, name: str = name) -> None:
                mine[name] = grad.detach().clone()
                flat = grad.detach().numpy()
                for seed in request["seeds"]:
                    slopes[(seed, name)] = float((flat * way(seed, name, flat.shape)).sum())

            hooks.append(leaf.register_hook(took))
        result = run(outputs, *args, **kwargs)
        for hook in hooks:
            hook.remove()
        kept.append({"grads": mine, "values": nudge.met})
        extra["told"].append(told)
        if len(kept) >= most:
            save()
            raise Enough
        newest = youngest()
        nudge.next_call(armed=True)
        save()
        return result

    return engine


def _heard(nudge: Nudge, outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {
        "loss": _loss(outputs, args),
        "leaves": {name: list(t.shape) for name, t in nudge.leaves.values()},
        "float64": all(t.dtype == torch.float64 for t in outputs if isinstance(t, torch.Tensor)),
        "inputs": not kwargs.get("accumulate_grad", False),
    }


def _loss(outputs: Any, args: tuple[Any, ...]) -> float:
    total = 0.0
    for out, grad in zip(outputs, args[0], strict=False):
        with torch.no_grad():
            total += float(out.sum() if grad is None else (out * grad).sum())
    return total
