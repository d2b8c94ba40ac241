"""Checkpoints by torch.distributed.checkpoint: saved by n ranks, loaded by m, and never half.

A checkpoint is written under a name of its own and renamed when every rank is done: one that a dying rank has left
behind is not looked at. The state of rows is a list of rows, spread evenly over the ranks that save, and brought to the
ranks that have those rows when it is loaded.
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.tensor import DTensor

from gradmend.sparse.distributed.embedding import ShardedEmbedding
from gradmend.sparse.distributed.shards import Shards, route
from gradmend.sparse.errors import SparseError
from gradmend.sparse.optim.base import RowOptimizer

_STEP = "step-"
_PARTIAL = ".partial"
_METADATA = ".metadata"  # torch.distributed.checkpoint's, written last
_WHOLE = "last"  # state that every row of a table has (lazy decay), touched or not


def latest(folder: str | Path) -> Path | None:
    """The newest checkpoint that is whole."""
    found = [p for p in Path(folder).glob(f"{_STEP}*") if not p.name.endswith(_PARTIAL)]
    return max(found, key=lambda p: int(p.name.removeprefix(_STEP)), default=None)


def _seen(folder: str | Path) -> Path | None:
    """The newest checkpoint, which all ranks must see: else an error on all of them."""
    import xxhash

    mine = latest(folder)
    mark = None if mine is None else (mine.name, xxhash.xxh3_64_hexdigest((mine / _METADATA).read_bytes()))
    every = _from_all(mark)
    if any(one != every[0] for one in every):
        told = ", ".join(f"rank {i} {'none' if one is None else one[0]}" for i, one in enumerate(every))
        same = " of other contents" if len({None if one is None else one[0] for one in every}) == 1 else ""
        raise SparseError(
            f"ranks see other checkpoints in {folder}: {told}{same}. Nothing was loaded: give a folder on a disk that "
            f"all ranks share, and wait until each of them shows the newest."
        )
    return mine


def _from_all(mine: Any) -> list[Any]:
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def save_checkpoint(
    folder: str | Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    keep: int = 2,
) -> Path:
    """All ranks call it. Returns the checkpoint's folder; the newest `keep` stay."""
    done = Path(folder) / f"{_STEP}{step:012d}"
    partial = done.with_name(done.name + _PARTIAL)
    state, extra = _model_state(model)
    notes: dict[str, Any] = {"step": step, "extra": extra}
    if optimizer is not None:
        more, notes["optimizer"] = _optimizer_state(model, optimizer)
        state.update(more)
    dcp_save({**state, "notes": _packed(notes)}, checkpoint_id=str(partial))
    dist.barrier()
    if dist.get_rank() == 0:
        if done.exists():
            shutil.rmtree(done)
        partial.rename(done)
        whole = sorted(p for p in Path(folder).glob(f"{_STEP}*") if not p.name.endswith(_PARTIAL))
        for old in whole[: -max(keep, 1)]:
            shutil.rmtree(old)
    dist.barrier()
    lost = [rank for rank, here in enumerate(_from_all(done.exists())) if not here]
    if lost:
        raise SparseError(
            f"rank 0 saved the checkpoint {done.name}, and rank {lost[0]} does not see it in {folder}: give a folder on a "
            f"disk that all ranks share."
        )
    return done


def load_checkpoint(
    folder: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> int | None:
    """The newest whole checkpoint of a folder, whoever has saved it; its step, or None if there is none.

    All ranks call it, and load the same step.
    """
    found = _seen(folder)
    if found is None:
        return None
    meta = FileSystemReader(str(found)).read_metadata().state_dict_metadata
    state, have = _model_state(model)
    notes = _unpacked(found, meta["notes"])
    extra = notes["extra"]
    lost = sorted(k for k, x in state.items() if not _fits(k, x, meta.get(k), extra, have))
    if lost:
        raise SparseError(
            f"the checkpoint {found.name} does not fit the model, which was not changed: {', '.join(lost[:5])}."
        )
    for key, x in state.items():
        entry = meta[key]
        if not isinstance(x, DTensor) and isinstance(entry, TensorStorageMetadata):
            state[key] = torch.empty(entry.size, dtype=entry.properties.dtype, device=x.device)
    lists = {} if optimizer is None else {k: m for k, m in meta.items() if k.startswith("optimizer.")}
    for key, entry in lists.items():
        assert isinstance(entry, TensorStorageMetadata)
        empty = torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        state[key] = _room(model, key, empty)
    dcp_load(state, checkpoint_id=str(found))
    model.load_state_dict(
        {**extra, **{k.removeprefix("model."): x for k, x in state.items() if k.startswith("model.")}}
    )
    if optimizer is not None:
        _take_over(model, optimizer, state, notes)
    return int(notes["step"])


def _packed(notes: dict[str, Any]) -> Tensor:
    """Rank 0's, as bytes: torch.distributed.checkpoint would take a dictionary apart."""
    file = io.BytesIO()
    torch.save(notes, file)
    held = [file.getvalue()]
    dist.broadcast_object_list(held, src=0)
    return torch.frombuffer(bytearray(held[0]), dtype=torch.uint8)


def _unpacked(found: Path, entry: Any) -> dict[str, Any]:
    head = {"notes": torch.empty(entry.size, dtype=torch.uint8)}
    dcp_load(head, checkpoint_id=str(found))
    made: dict[str, Any] = torch.load(io.BytesIO(head["notes"].numpy().tobytes()), weights_only=True)
    return made


def _fits(key: str, held: Tensor, entry: Any, extra: dict[str, Any], have: dict[str, Any]) -> bool:
    """A sparse weight's pattern comes along, and says how many values there are."""
    if not isinstance(entry, TensorStorageMetadata):
        return False
    home, _, name = key.removeprefix("model.").rpartition(".")
    place = f"{home}._extra_state".removeprefix(".")
    if name == "values" and place in extra and place in have:
        return list(extra[place]["size"]) == list(have[place]["size"])
    return tuple(entry.size) == tuple(held.shape)


def _model_state(model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors by key, and all that is no tensor (patterns)."""
    found = model.state_dict()
    tensors = {f"model.{k}": x for k, x in found.items() if isinstance(x, Tensor)}
    return tensors, {k: x for k, x in found.items() if not isinstance(x, Tensor)}


def _tables(model: nn.Module) -> dict[str, Shards]:
    """Sharded parameters by name."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, ShardedEmbedding):
            found[f"{name}.weight" if name else "weight"] = module.shards
    return found


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """The name of each of the optimizer's parameters, in its order."""
    known = {p: name for name, p in model.named_parameters()}
    order = [p for group in optimizer.param_groups for p in group["params"]]
    if any(p not in known for p in order):
        raise SparseError("the optimizer has parameters that are none of the model's.")
    return [known[p] for p in order]


def _optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors by key, and all that is no tensor."""
    tables, names, saved = _tables(model), _names(model, optimizer), optimizer.state_dict()
    tensors: dict[str, Any] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(names):
        state = saved["state"].get(number, {})
        numbers[name] = {k: x for k, x in state.items() if not isinstance(x, Tensor)}
        tensors_of = {k: x for k, x in state.items() if isinstance(x, Tensor)}
        if name in tables:
            tensors_of = _spread(tables[name], state)
            numbers[name]["rows"] = True
        tensors.update({f"optimizer.{name}.{k}": x for k, x in tensors_of.items()})
    groups = [{k: v for k, v in group.items() if k != "params"} for group in saved["param_groups"]]
    return tensors, {"groups": groups, "numbers": numbers}


def _spread(shards: Shards, state: dict[str, Any]) -> dict[str, Any]:
    """This rank's rows of state -> an even share of the list of all."""
    low, _ = shards.bounds()
    device = shards.device
    tensors = {k: x.to(device) for k, x in state.items() if isinstance(x, Tensor) and k != _WHOLE}
    if tensors and "rows" not in tensors:
        tensors["rows"] = torch.arange(shards.count, device=device)
    count = tensors["rows"].shape[0] if tensors else 0
    every: list[Any] = [None] * shards.world
    kinds = {k: (x.dtype, tuple(x.shape[1:])) for k, x in tensors.items()}
    dist.all_gather_object(every, (count, kinds), group=shards.group)
    kinds = next((k for _, k in every if k), {})
    for name, (dtype, shape) in kinds.items():
        tensors.setdefault(name, torch.empty(0, *shape, dtype=dtype, device=device))
    if not kinds:
        return {}
    even = Shards(sum(n for n, _ in every), shards.mesh)
    first = sum(n for n, _ in every[: shards.rank])
    to = even.owner(torch.arange(first, first + count, device=device))
    tensors["rows"] = tensors["rows"] + low
    order = sorted(tensors)
    sent = route(shards.group, to, *(tensors[k] for k in order))
    made = {k: even.wrap(x) for k, x in zip(order, sent, strict=True)}
    if _WHOLE in state:
        made[_WHOLE] = shards.wrap(state[_WHOLE].to(device))
    return made


def _room(model: nn.Module, key: str, like: Tensor) -> Any:
    """Where a tensor of the optimizer's is loaded to."""
    for name, shards in _tables(model).items():
        if key.startswith(f"optimizer.{name}."):
            even = Shards(like.shape[0], shards.mesh)
            return even.wrap(torch.zeros(even.count, *like.shape[1:], dtype=like.dtype, device=shards.device))
    return torch.zeros(like.shape, dtype=like.dtype)


def _take_over(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any], kept: dict[str, Any]
) -> None:
    notes = kept.get("optimizer")
    if notes is None:
        raise SparseError("the checkpoint holds no optimizer's state.")
    tables, names = _tables(model), _names(model, optimizer)
    if set(names) != set(notes["numbers"]):
        raise SparseError("the checkpoint's optimizer had other parameters.")
    made = optimizer.state_dict()
    for number, name in enumerate(names):
        prefix = f"optimizer.{name}."
        tensors = {k.removeprefix(prefix): x for k, x in state.items() if k.startswith(prefix)}
        numbers = {k: x for k, x in notes["numbers"][name].items() if k != "rows"}
        if name in tables and tensors:
            tensors = _gathered(tables[name], tensors)
            if not isinstance(optimizer, RowOptimizer):
                raise SparseError(
                    f"{name} has state by rows: load it into an optimizer of gradmend.sparse.optim."
                )
        if tensors or numbers:
            made["state"][number] = {**numbers, **tensors}
    for group, saved in zip(made["param_groups"], notes["groups"], strict=True):
        group.update(saved)
    optimizer.load_state_dict(made)


def _gathered(shards: Shards, tensors: dict[str, Any]) -> dict[str, Any]:
    """An even share of the list -> the rows that this rank has."""
    local = {k: x.to_local() if isinstance(x, DTensor) else x for k, x in tensors.items()}
    whole = {k: local.pop(k) for k in (_WHOLE,) if k in local}
    order = sorted(local)
    to = shards.owner(local["rows"])
    made = dict(zip(order, route(shards.group, to, *(local[k] for k in order)), strict=True))
    made["rows"] = made["rows"] - shards.bounds()[0]
    return {**made, **whole}
