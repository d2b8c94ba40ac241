"""Writes src/gradmend/check/ops.json: what each op keeps for backward, so that `gradmend check` needs no torch.

python tools/make_ops.py [--check]

Ops with a derivative of their own come from derivatives.yaml of the installed torch; ops made of others are run on something
tiny, once for each input that may need a gradient; what is a view comes from the op schemas.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from gradmend.story.knowledge import _composite, _entries

OUT = Path(__file__).parents[1] / "src/gradmend/check/ops.json"
# Where people find ops, and how the name there becomes ATen's.
HOMES: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, ""),
    (torch, ""),
    (F, ""),
    (torch.linalg, "linalg_"),
    (torch.special, "special_"),
    (torch.fft, ""),
)
# ATen's own name for what Python calls otherwise.
RENAMED = {
    "max_pool2d": "max_pool2d_with_indices",
    "layer_norm": "native_layer_norm",
    "norm": "linalg_vector_norm",
}
# They trust their arguments, and end the process on ours.
CRASH = ("quantize", "fbgemm", "mkldnn", "miopen", "cudnn", "rnn", "lstm", "gru", "from_file", "unsafe")


def names() -> list[str]:
    found = {"linear", "getitem", "setitem"}
    for home, prefix in HOMES:
        for name in dir(home):
            if not name.startswith("_") and not name.endswith("_") and callable(getattr(home, name, None)):
                found.add(prefix + name)
    return sorted(found)


def entry_of(op: str) -> dict[str, Any] | None:
    """{"args": [...], "keeps": {slot: [inputs whose gradient reads it]}}, and "view" where it makes one."""
    own = [e for e in _entries.by_op().get(op, ()) if not e.composite and e.key == "Default"]
    made: dict[str, Any] | None = None
    if any(e.formulas for e in own):
        made = from_formulas(own)
    elif own:
        made = {"args": list(own[0].tensors), "grad": False}
    else:
        made = measured(op)
    view = view_of(op)
    if made is None and view is None:
        return None
    made = made or {"args": arguments(op)}
    if view is not None:
        made["view"] = view
    return made


def from_formulas(entries: list[_entries.Entry]) -> dict[str, Any]:
    keeps: dict[str, set[str]] = {}
    args: list[str] = []
    for entry in entries:
        order = [a.name for a in torch._C.parse_schema(f"aten::{entry.schema}").arguments]
        args = order if len(order) > len(args) else args
        for formula in entry.formulas:
            for slot in formula.reads:
                name = "result" if slot in entry.results[:1] else ("" if slot in entry.results else slot)
                if name:
                    keeps.setdefault(name, set()).update(formula.inputs)
    return {"args": args, "keeps": {k: sorted(v) for k, v in sorted(keeps.items())}}


def arguments(op: str) -> list[str]:
    found = [s for s in torch._C._jit_get_schemas_for_operator(f"aten::{op}") if not _is_out(s)]
    if found:
        return [a.name for a in max(found, key=lambda s: len(s.arguments)).arguments]
    function = getattr(F, op, None) or getattr(torch, op, None)
    try:
        return list(inspect.signature(function).parameters) if function else ["self"]
    except (TypeError, ValueError):
        return ["self"]


def _is_out(schema: Any) -> bool:
    return any(a.is_out for a in schema.arguments)


def view_of(op: str) -> str | None:
    """ "one", or "many" for a list of views of one call."""
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{op}"):
        infos = [a.alias_info for a in schema.arguments]
        if any(i is not None and i.is_write for i in infos) or not any(infos):
            continue
        returns = schema.returns
        if (len(returns) == 1 and returns[0].alias_info is not None) or "[]" in str(returns[0].type):
            return "many" if "List" in str(returns[0].type) or "[]" in str(returns[0].type) else "one"
    return None


def measured(op: str) -> dict[str, Any] | None:
    """Run with one input at a time that needs a gradient: which inputs, and is the result, kept?"""
    if op.startswith(CRASH):
        return None
    args = arguments(op)
    with torch.random.fork_rng(devices=[]):
        for call, inputs, run in _composite._candidates(op):
            try:
                keeps = _one_by_one(call, inputs, run, args)
            except Exception:
                continue
            if keeps is not None:
                return {"args": args, "keeps": {k: sorted(v) for k, v in sorted(keeps.items())}}
    return None


def _one_by_one(call: str, inputs: dict[str, Any], run: Any, args: list[str]) -> dict[str, set[str]] | None:
    position = _positions(call, args)
    if not all(t.is_leaf for t in inputs.values()):
        return None
    keeps: dict[str, set[str]] = {}
    seen = False
    wanted = {name: t.requires_grad for name, t in inputs.items()}
    for name, tensor in inputs.items():
        if not wanted[name] or name not in position:
            continue
        for other, t in inputs.items():
            t.requires_grad_(other == name)
        kept, out = _run(run)
        outs = [o for o in (out if isinstance(out, tuple | list) else (out,)) if isinstance(o, torch.Tensor)]
        if not any(o.grad_fn is not None for o in outs):
            continue
        seen = True
        at = {t.untyped_storage().data_ptr() for t in kept}
        given = {t.untyped_storage().data_ptr() for t in inputs.values()}
        for other, t in inputs.items():
            if other in position and t.untyped_storage().data_ptr() in at:
                keeps.setdefault(position[other], set()).add(position[name])
        if at & ({o.untyped_storage().data_ptr() for o in outs} - given):
            keeps.setdefault("result", set()).add(position[name])
        del tensor
    return keeps if seen else None


def _run(run: Any) -> tuple[list[Any], Any]:
    kept: list[Any] = []

    def pack(tensor: Any) -> Any:
        kept.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        return kept, run()


def _positions(call: str, args: list[str]) -> dict[str, str]:
    """The names in one of our own calls -> the op's names for those arguments."""
    tree = ast.parse(call, mode="eval").body
    given: dict[str, str] = {}
    if isinstance(tree, ast.Call):
        for i, argument in enumerate(tree.args):
            first = next(
                (n.id for n in ast.walk(argument) if isinstance(n, ast.Name) and n.id not in ("torch", "F")),
                None,
            )
            if first is not None and i < len(args):
                given.setdefault(first, args[i])
    elif isinstance(tree, ast.Subscript):
        given = {"x": "self", "labels": "indices"}
    return given


def in_place(name: str, made: dict[str, Any]) -> dict[str, Any] | None:
    """An op made of others that keeps its result in place, and not out of place: selu_."""
    plain = made[name[:-1]]
    if name in made or "result" in plain.get("keeps", {}) or plain.get("view") or name.startswith(CRASH):
        return None
    ran = _composite.measure(name)
    if ran is None or not ran.keeps_output:
        return None
    return {
        "args": arguments(name),
        "keeps": {slot: ["self"] for slot in sorted((*ran.kept_inputs, "result"))},
    }


def table() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in names():
        found = entry_of(name)
        if found is None and name in RENAMED:
            found = entry_of(RENAMED[name])
        if found is not None:
            made[name] = found
    for name in sorted(_entries.by_op()):
        plain = name.rstrip("_")
        own = [e for e in _entries.by_op()[name] if e.formulas and not e.composite]
        if name.endswith("_") and own and not name.startswith("_"):
            made[name] = from_formulas(own)  # in place it may keep another thing: leaky_relu_ its result
        if not name.startswith("_") and plain not in made and (found := entry_of(plain)) is not None:
            made[plain] = found
    made |= {
        name: found for plain in list(made) if (found := in_place(name := f"{plain}_", made)) is not None
    }
    return {"torch": torch.__version__.partition("+")[0], "ops": made}


def main() -> int:
    made = table()
    lines = [f' "{name}": {json.dumps(value)}' for name, value in made["ops"].items()]
    text = f'{{"torch": "{made["torch"]}", "ops": {{\n' + ",\n".join(lines) + "\n}}\n"
    if "--check" in sys.argv[1:]:
        fresh = OUT.exists() and OUT.read_text(encoding="utf-8") == text
        print("fresh" if fresh else "stale: run tools/make_ops.py")
        return 0 if fresh else 1
    OUT.write_text(text, encoding="utf-8")
    print(f"{len(made['ops'])} ops")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
