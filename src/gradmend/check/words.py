"""Every sentence of `gradmend check`, and which rule it falls under."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gradmend.check.findings import UNCHECKED, Call, Finding, Place, Severity, StaticFix, printable
from gradmend.check.values import Node, Tensor

if TYPE_CHECKING:
    from gradmend.check.instead import Instead
    from gradmend.check.ledger import Save, Write

_ROADS = {"numpy": "numpy", "dlpack": "DLPack"}
_WHERE = frozenset({"index", "indices", "mask", "condition", "target", "offsets"})
_CALLED = {"mask": "mask", "condition": "mask", "target": "target", "offsets": "offsets"}


def overwritten(
    save: Save, write: Write, backward: Place | None, severity: Severity, again: bool = False
) -> Finding:
    """`again`: by the same backward(), in an iteration after the one that kept it."""
    code = rule_of(save, write)
    name = f"`{write.name}`" if write.name else "a tensor" if write.made is None else "its input"
    op = f"{write.op}, made on {_line(write.made, write.place)}," if write.made is not None else write.op
    if write.how in ("loud", "fused", "collective"):
        did = f"{op} changes {name} in place" if "step" not in write.op else f"{write.op}() changes {name}"
    elif write.how == "detach":
        did = f"detach_() takes {name} out of the graph"
    elif write.how == "stats":
        did = "this pass in train mode changes the running statistics"
    elif write.how == "rebound":
        did = f"this line gives {name} another value"
    elif write.how == "swap":
        did = f"this line gives {name} other memory through .data"
    else:
        did = f"{write.op} changes {name} through {_ROADS.get(write.how, '.data')}, unseen by autograd"
    where = _line(save.place, write.place)
    if save.slot == "ctx":
        kept = f"{save.op} on {where} hung it on ctx"
    elif save.op == "checkpoint" and save.unguarded:
        kept = f"the checkpointed function reads it again on {where}"
    elif save.slot == "result":
        kept = f"{save.op} on {where} kept its result"
    else:
        kept = f"{save.op} on {where} kept it"
    if backward is not None:
        needs = f"for backward() on {_line(backward, write.place)}"
        if backward == write.place:
            needs = "for backward()"
        if again:
            needs += " in the next iteration"
    else:
        needs = "for backward()"
    quiet = write.how not in ("loud", "detach") or save.unguarded
    end = ": the gradient is silently wrong" if quiet else ""
    keeps = "keeps its result" if save.slot == "result" else "keeps this"
    if save.op == "checkpoint" and save.unguarded:
        keeps = "reads this again"
    related = [(f"{save.op} {keeps} here", save.place)]
    if backward is not None:
        related.append(("backward() needs it here", backward))
    if write.made is not None and write.made != write.place:
        related.append(("inplace=True stands here", write.made))
    # What the statement itself reads, it reads after a clone that stands before it.
    within = write.place.holds(save.place)
    return Finding(
        write.place,
        code,
        severity,
        f"{did}, but {kept} {needs}{end}",
        _CARRIED if again and code in ("GM104", "GM203") else _help(code, save, write),
        tuple(related),
        # A clone would be a new tensor under the old name, and the second run of a checkpoint reads the name.
        None if code == "GM208" and save.unguarded else write.reads if within else write.fix,
        write.via,
    )


def rule_of(save: Save, write: Write) -> str:
    if write.how == "detach":
        return "GM133"
    if save.slot == "ctx":
        return "GM205"
    if save.slot == "running":
        return "GM211"
    if save.op == "checkpoint":
        return "GM208"
    if write.how == "swap":
        return "GM204"
    if write.how == "numpy":
        return "GM202"
    if write.how == "fused":
        return "GM203"
    if write.how == "collective":
        return "GM209"
    if write.how in ("data", "dlpack"):
        return "GM201"
    if write.op.endswith("step"):
        return "GM104"
    if "max_norm" in write.op:
        return "GM108"
    if save.slot in _WHERE:
        return "GM106"
    if write.flag:
        return "GM107"
    if save.leaf:
        return "GM105"
    if write.part and (write.looped or save.whole is None):
        return "GM103"  # as a buffer is filled; a lone write to a part is none
    return "GM101" if save.slot == "result" else "GM102"


def second_backward(node: Node, first: Place, second: Place) -> Finding:
    again = "again, in the next iteration," if first == second else f"after the one on {_line(first, second)}"
    message = (
        f"backward() {again} goes a second time through {_op(node.op)} on {_line(node.place, second)}, "
        "whose kept tensors the first has freed"
    )
    related = [("this part of the graph is used twice", node.place)]
    if first != second:
        related.append(("this backward() frees it", first))
    severity: Severity = "error" if node.sure else "warning"
    return Finding(second, "GM131", severity, message, _HELP["GM131"], tuple(related))


def kept_inference(op: str, place: Place, tensor: Tensor, severity: Severity) -> Finding:
    name = f"`{tensor.name}`" if tensor.name else "a tensor"
    what = f"{op} would keep {name} for backward(), which was made under inference_mode: PyTorch refuses it"
    related = (("it is made here", tensor.origin),) if tensor.origin is not None else ()
    return refused("GM128", place, what, severity, related)


def kept_reference(name: str, taken: Place | None, read: Place, added: Place) -> str:
    where = f" on {_line(taken, added)}" if taken is not None else ""
    return (
        f"this adds to the gradient that `{name}`{where} still refers to, and {_line(read, added)} reads it as the "
        "gradient of before"
    )


def at_the_call(finding: Finding, call: Call) -> Finding:
    """What lies in an imported file, told where the checked file calls into it."""
    there = finding.place
    own, other = _name(call.place), _name(there)
    said = finding.message.replace(f"{own} line ", "line ")
    return replace(
        finding,
        place=call.place,
        message=f"in {call.function}() at {other}:{there.line}, {said}",
        help=f"in {other}: {finding.help}" if finding.help else "",
        related=(*finding.related, ("this is the line", there)),
        fix=None,
        via=None,
        stands_for=there,
    )


UNCHECKED_TEXT = """\
GM000 not-checked

Something could not be read or followed, so that nothing is known of it: a syntax error, or code that is nested too deeply.

It is told whatever `select` says. To leave it out, name it: `--ignore GM000`, `"old/*" = ["GM000"]` under
[tool.gradmend.per-file-ignores], `# noqa: GM000` on the line, or `# gradmend: skip-file`; `exclude` leaves out whole folders.
"""


def too_deep(place: Place) -> Finding:
    what = "nested too deeply to be followed: what this does was not checked"
    return Finding(
        Place(place.file, place.line, place.column, place.line, place.column + 1), UNCHECKED, "warning", what
    )


def refused(
    code: str,
    place: Place,
    what: str,
    severity: Severity,
    related: tuple[tuple[str, Place], ...] = (),
    fix: StaticFix | None = None,
    help: str = "",
) -> Finding:
    """A write that PyTorch refuses at once, or a habit that is wrong by itself."""
    return Finding(place, code, severity, what, help or _HELP.get(code, ""), related, fix)


def _line(place: Place, beside: Place) -> str:
    if place.file == beside.file:
        return f"line {place.line}"
    return f"{_name(place)} line {place.line}"


def _name(place: Place) -> str:
    return printable(place.file.replace("\\", "/").rpartition("/")[2])


def _op(op: str) -> str:
    return "this call" if op in ("call", "") else op


def _help(code: str, save: Save, write: Write) -> str:
    """For a write in the open, the very line to type instead."""
    if code == "GM208" and save.unguarded:
        return _REBOUND if write.how == "rebound" else _READ_AGAIN
    if code == "GM107" and write.made is not None:
        return f"drop inplace=True on {_line(write.made, write.place)}"
    if code == "GM106":
        return f"clone the {_CALLED.get(save.slot, 'index')} before it is changed"
    line, clone = write.instead.line, write.instead.clone
    if code in ("GM101", "GM102", "GM103") and write.place.holds(save.place):
        ways = [f"write `{line}`"] if line else []
        if write.reads is not None:
            ways.append(write.reads.message)
        if code == "GM103":
            ways.append("collect the parts in a list and torch.stack them")
        return ", or ".join(ways) or _HELP[code]
    if code in ("GM101", "GM102", "GM103") and write.instead.given:
        return _for_the_caller(write.instead)
    if code == "GM103" and clone and write.instead.part:
        return f"clone it first: `{clone}`; of a buffer filled in a loop, collect the parts in a list and torch.stack them"
    if code in ("GM101", "GM102") and write.part and not write.instead.part:
        return "clone the tensor before the view of it is made"
    if code not in ("GM101", "GM102") or not (line or clone):
        return _HELP[code]
    also = _also_elsewhere(save, write) if write.elsewhere else ""
    if not line:
        return f"clone it first: `{clone}` on a line before this one{also}"
    return f"write `{line}`" + (f", or clone it first: `{clone}`" if clone else "") + also


def _also_elsewhere(save: Save, write: Write) -> str:
    """A list or another name that holds the tensor sees the write, and would not see a new tensor."""
    where = f"on {_line(save.place, write.place)}"
    what = (
        f"clone what {save.op} returns {where}"
        if save.slot == "result"
        else f"give {save.op} {where} a clone"
    )
    return f"; whatever else holds `{write.name}` has the old value then: to change that too, leave this line and {what}"


def _for_the_caller(instead: Instead) -> str:
    """The caller sees what the function writes to its parameter: a new tensor has to be handed back."""
    if not instead.line:
        return f"`{instead.given}` is the caller's: change a copy, return it, and use what is returned there"
    if instead.returned:
        return (
            f"write `{instead.line}`, and use what is returned: the caller's own tensor then stays as it is"
        )
    return f"`{instead.given}` is the caller's: `return {instead.line}`, and use what is returned there"


NEW_TENSOR = "make a new tensor, out of place or with .clone() first: no_grad would cut the gradient of what is written"
_CARRIED = (
    "the next iteration's backward() goes back into this one: detach the state that is carried over (`h = h.detach()`; of an LSTM, both of its tensors), and "
    "drop retain_graph=True"
)
_ANEW = (
    "compute the loss of the later backward() anew after step(), and detach() what the first loss shares with it (of a GAN: "
    "`D(fake.detach())` for the discriminator's loss); both backward() calls before step() would mix their gradients"
)
_READ_AGAIN = (
    "write to it after backward(), or hand it to the checkpointed function as an argument and bind a new tensor here; a new "
    "tensor alone does not help, backward() runs the function again and it reads the name again"
)
_REBOUND = "hand it to the checkpointed function as an argument, or bind it after backward(), which runs the function again"
_HELP = {
    "GM101": "write it out of place, or clone the result first",
    "GM102": "write it out of place, or clone it before the write",
    "GM103": "collect the parts in a list and torch.stack them, or clone what was read",
    "GM104": _ANEW,
    "GM105": "update after backward(), or use a copy of the parameter in the forward",
    "GM107": "drop inplace=True here",
    "GM108": "use `weight.clone()` before the lookup: a lookup with max_norm rescales the table in place",
    "GM120": "return the tensor that was marked dirty, and compute the rest outside",
    "GM121": "update inside `with torch.no_grad():`, or make a new tensor",
    "GM122": "write out of place, or index the tensor (`x[i]`) instead of writing what unbind, split or chunk returned",
    "GM123": "make the view outside of no_grad, or write under no_grad too",
    "GM124": "call .clone() after expand()",
    "GM125": "drop out=: such calls have no derivative",
    "GM126": "use detach(), which returns a new tensor",
    "GM127": "write out of place, or clone the result first",
    "GM128": "make it under torch.no_grad(), or clone it outside of inference_mode",
    "GM129": "clone the side that is read: `x[1:] = x[:-1].clone()`",
    "GM130": "make a new tensor: a slice, .to(...), .detach()",
    "GM131": "detach() what is carried over, compute the shared part anew, or add the losses and call backward() once",
    "GM132": "keep the path from the loss to the parameters: no detach(), .item() or no_grad on it",
    "GM133": "use detach(), which returns a new tensor and leaves the kept one as it was",
    "GM134": "ask for the tensor that the output was computed from, or pass allow_unused=True",
    "GM135": "drop the in-place form here",
    "GM201": "write in the open, out of place, or after backward()",
    "GM202": "copy the array or the tensor before it is shared",
    "GM203": _ANEW,
    "GM204": "assign after backward(), or copy_ under no_grad after it",
    "GM205": "keep tensors with ctx.save_for_backward, and write out of place",
    "GM206": "call ctx.mark_dirty(x) in forward, or write to a copy",
    "GM207": "return a new gradient (`return g * 2`) instead of writing to it",
    "GM208": "write to it after backward(), or bind a new tensor instead: the checkpointed function runs again in backward()",
    "GM209": "clone it before the collective, or call the collective after backward()",
    "GM210": "make the edit in the open (`torch.where`, masked_fill), or say that it is meant: `h + (edited - h).detach()`",
    "GM211": "call backward() first, or give the two roles two layers (copy.deepcopy)",
    "GM212": "clone it (`p.grad.clone()`), or take the gradients with torch.autograd.grad",
    "GM301": "call .coalesce() first; gradmend.sparse.SparseTensor has its values at once",
    "GM302": "train the values themselves: gradmend.sparse.SparseTensor(pattern, values)",
    "GM303": "keep the values as a leaf and read values.grad: gradmend.sparse.SparseTensor",
    "GM307": "gradmend.sparse.SparseTensor gives the gradient of the stored entries only",
    "GM308": "use SparseAdam, or SGD or Adagrad without weight_decay; gradmend.sparse.optim (RowAdam, RowSGD, ...) takes both",
    "GM309": "use Adam for it, and SparseAdam for the sparse ones only",
    "GM310": "gradmend.sparse.SparseTensor has it, with a gradient",
    "GM311": "put the dense one first, or map over the entries: gradmend.sparse.SparseTensor.map",
    "GM312": "gradmend.sparse.SparseTensor divides by a dense tensor",
    "GM313": "gradmend.sparse.SparseTensor.from_csr sums over any dimension",
    "GM314": "change the values before the sparse tensor is made",
    "GM315": "coalesce it, and take .indices() and .values()",
    "GM316": "pass collate_fn=torch.stack",
    "GM317": "keep the values as the Parameter: gradmend.sparse.nn.SparseWeight",
    "GM319": "gradmend.sparse.SparseTensor has a derivative in forward mode",
    "GM306": "write `torch.sparse.sum(A, dim)`, which has a gradient and a sparse result; gradmend.sparse.SparseTensor sums too",
}
