"""What the installed torch says each op writes (`alias_info.is_write` of its schemas)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch


class Writes(NamedTuple):
    """Arguments that an op changes: by position and by keyword. `out` arguments are apart."""

    args: tuple[tuple[int, str], ...]
    outs: tuple[str, ...] = ()

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors that one call changes."""
        found: list[torch.Tensor] = []
        for position, name in self.args:
            gather(args[position] if len(args) > position else kwargs.get(name), found)
        for name in self.outs:
            gather(kwargs.get(name), found)
        return found


def gather(value: Any, into: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        into.append(value)
    elif isinstance(value, (list, tuple)):
        for one in value:
            gather(one, into)


# Schemas that understate what they write: these change their running statistics when training.
UNDERSTATED: dict[str, tuple[tuple[int, str], ...]] = {
    "batch_norm": ((3, "running_mean"), (4, "running_var")),
    "native_batch_norm": ((3, "running_mean"), (4, "running_var")),
    "cudnn_batch_norm": ((3, "running_mean"), (4, "running_var")),
    "miopen_batch_norm": ((3, "running_mean"), (4, "running_var")),
    "instance_norm": ((3, "running_mean"), (4, "running_var")),
    "_batch_norm_impl_index": ((3, "running_mean"), (4, "running_var")),
    "batch_norm_gather_stats": ((3, "running_mean"), (4, "running_var")),
    "batch_norm_gather_stats_with_counts": ((3, "running_mean"), (4, "running_var")),
    "batch_norm_update_stats": ((1, "running_mean"), (2, "running_var")),
}

# They change how a tensor lies in memory, or its history, and no byte of it.
METADATA = frozenset(
    "t_ transpose_ squeeze_ unsqueeze_ swapaxes_ swapdims_ detach_ as_strided_ requires_grad_ rename_ "
    "resize_as_sparse_ _coalesced_ is_coalesced_ share_memory_ retain_grad".split()
)

# Named in schemas as writers of Python lists (of tensors too) or streams; their `out=` forms do write tensors.
NOT_TENSORS = frozenset(
    "manual_seed seed setdefault pop insert Delete clear _set_item append update reverse popitem remove extend "
    "sort record_stream".split()
)


def writes_of(name: str, schemas: Iterable[Any]) -> Writes:
    """What any of an op's schemas writes."""
    args: dict[int, str] = dict(UNDERSTATED.get(name, ()))
    outs: dict[str, None] = {}
    for schema in schemas:
        for position, arg in enumerate(schema.arguments):
            if arg.alias_info is None or not arg.alias_info.is_write or "Tensor" not in str(arg.type):
                continue
            if arg.is_out or arg.kwarg_only:
                outs[arg.name] = None
            elif name not in NOT_TENSORS:
                args[position] = arg.name
    return Writes(tuple(sorted(args.items())), tuple(outs))


@cache
def writing_ops() -> dict[str, Writes]:
    """Op name -> what any of its overloads writes."""
    schemas: dict[str, list[Any]] = {}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space == "aten":
            schemas.setdefault(name, []).append(schema)
    found = {name: writes_of(name, schemas[name]) for name in sorted(schemas)}
    return {name: writes for name, writes in found.items() if any(writes)}
