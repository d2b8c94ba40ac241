"""The writes that PyTorch refuses on the spot. The line that raised is the line to look at."""

from __future__ import annotations

import ast
import re

from gradmend.story.failures.scene import Cause, Scene, Told, cause
from gradmend.story.failures.versions import bare, knowledge_of

_OUT_OF_PLACE = "write out of place instead"


def _leaf(match: re.Match[str], scene: Scene) -> Told:
    view = bool(match["view"])
    what = scene.named("the written tensor")
    if scene.is_late_view:
        return Told(
            f"{what} is a view, made before the tensor that it is cut from required grad, and this line writes to it",
            (
                "PyTorch gives such a view its history when its `grad_fn` is looked at, and until then takes it for a leaf",
            ),
            (
                "take the view where it is written, `rows[i].add_(x)`, in place of a list of views made before",
                "gradmend.heal() runs it as it is",
            ),
        )
    message = f"{what} is {'a view of ' if view else ''}a leaf that requires grad, and this line writes to it in grad mode"
    notes: tuple[str, ...] = (
        "a leaf is where backward puts a gradient: written in grad mode it would be the result of an op, "
        "and no leaf any more",
    )
    meaning = getattr(scene.error, "meaning", "")
    if meaning:
        notes = (*notes, meaning)
    update = "if this is an update of a parameter, put it under `with torch.no_grad():`"
    if scene.mentions("grad"):
        return Told(message, notes, ("put the update under `with torch.no_grad():`",))
    if scene.rebound and not view:
        part = f"if this is part of the computation, make a new tensor: `{scene.rebound}`"
    else:
        part = "if this is part of the computation, write to a `.clone()` of the leaf and use that"
    return Told(message, notes, (update, part))


def _multi_view(match: re.Match[str], scene: Scene) -> Told:
    maker = _maker(match["maker"])
    what = scene.named("the written tensor")
    message = f"{what} is {maker}, and this line writes to it"
    notes = (
        "autograd tracks writes through one view at a time; views that come several from one call "
        "may be read, not written",
    )
    loop = _iterated(scene)
    if loop is not None:
        name, over = loop
        return Told(
            f"{what} is a row that iterating over `{over}` gave, and this line writes to it",
            (*notes, "iterating over a tensor is `unbind`"),
            (
                f"write through the index: `for i in range(len({over})):` and `{over}[i]` in place of `{name}`",
                f"or {_OUT_OF_PLACE}, and stack the results",
            ),
        )
    helps = [f"{_OUT_OF_PLACE}: `{scene.rebound}`" if scene.rebound else _OUT_OF_PLACE]
    helps.append("or `.clone()` the piece first; the tensor it was cut from then keeps its old values")
    return Told(message, notes, tuple(helps))


def _read_view(match: re.Match[str], scene: Scene) -> Told:
    """One of several views of one call is read after their base was written. PyTorch may speak of no_grad: there is none."""
    views = scene.unpacked
    if views is None:
        what, made, base, again = "a view", "by a call that returns several views", "its base", ""
    else:
        what, base = f"`{views.name}`", f"`{views.base}`"
        made = f"on line {views.line}, together with others, as views of `{views.source}`"
        again = f"write line {views.line} as `{views.cloned}`" if views.cloned else ""
    written = scene.written_before(views.base, views.line) if views is not None else None
    helps = [again or "clone what the views are cut from, or take each view by its own index"]
    rebound = scene.out_of_place(written)
    if written and rebound:
        helps.insert(0, f"write line {written.lineno} as `{rebound}`: {what} then keeps the old values")
        if again:
            helps[1] = f"or {again}, which keeps them too"
        helps.append(f"if {what} should have the new values, make the views after line {written.lineno}")
    message = f"this line reads {what}, made {made}, and an in-place op has changed {base} since"
    if written and views is not None and scene.frame is not None:
        message = (
            f"line {written.lineno} changes {base} in place, and line {scene.frame.line} reads {what} afterwards: a view "
            f"of {base}, made on line {views.line} together with others"
        )
    return Told(
        message,
        (
            "unpacking a tensor (`a, b = x`), iterating over it, `unbind`, `split` and `chunk` make several views in one "
            "call; autograd can't follow them through a write to the tensor that they are cut from",
        ),
        tuple(helps),
        written,
    )


def _guarded_view(match: re.Match[str], scene: Scene) -> Told:
    mode = "no_grad" if match["mode"] == "no_grad" else "inference_mode"
    what = scene.named("the written tensor")
    return Told(
        f"{what} is a view made under `{mode}`, and this line writes to it outside",
        (
            f"under `{mode}` nothing is tracked, outside everything is: for a view made in one and written in the "
            "other, PyTorch can't tell which is meant",
        ),
        (
            f"if the write should count for the gradient, make the view outside the `{mode}` block",
            f"if it should not, move the write into the `{mode}` block",
        ),
    )


def _expanded(match: re.Match[str], scene: Scene) -> Told:
    what = scene.named("the written tensor")
    return Told(
        f"{what} is expanded: several of its elements are one and the same memory, and this line writes to them",
        (
            "`expand`, `expand_as`, `broadcast_to` and broadcasting functions like `meshgrid` repeat elements "
            "without copying them",
        ),
        (
            "`.clone()` the expanded tensor before the write, or make it with `.repeat(...)`",
            *((f"or {_OUT_OF_PLACE}: `{scene.rebound}`",) if scene.rebound else ()),
        ),
    )


def _overlap(match: re.Match[str], scene: Scene) -> Told:
    what = scene.named("the written tensor")
    return Told(
        f"this line reads and writes overlapping memory: part of what it writes to {what} is also its input",
        ("the result would depend on the order in which elements are copied",),
        (f"`.clone()` the side that is read{f': `{scene.copied}`' if scene.copied else ''}",),
    )


def _out(match: re.Match[str], scene: Scene) -> Told:
    op = match["op"]
    what = scene.named("the tensor given as `out=`")
    give = f"drop `out=`: `{scene.without_out}`" if scene.without_out else "drop `out=` and use the result"
    return Told(
        f"`{op}` with `out=` has no gradient, and one of its arguments requires grad",
        (f"the result would be put into {what} without autograd knowing where it came from",),
        (give, "if no gradient is wanted here, put the line under `with torch.no_grad():`"),
    )


def _detach_view(match: re.Match[str], scene: Scene) -> Told:
    what = scene.named("the tensor")
    give = f"`{scene.rebound}`" if scene.rebound else "`x = x.detach()`"
    return Told(
        f"{what} is a view, and `detach_()` would cut it from its graph but not from its base",
        ("slices, and the outputs of split, chunk, unbind, view, transpose are views",),
        (f"use `detach()`, which returns a new tensor: {give}",),
    )


def _function_view(match: re.Match[str], scene: Scene) -> Told:
    maker = match["maker"].removesuffix("Backward")
    what = scene.named("the written tensor")
    rebound = f"{_OUT_OF_PLACE}: `{scene.rebound}`" if scene.rebound else _OUT_OF_PLACE
    if maker == "BackwardHookFunction":
        return Told(
            f"{what} passed through a module with a backward hook, and this line writes to it",
            (
                "`register_full_backward_hook` hands a module's inputs and outputs on as views, to see their "
                "gradients; a write would go around it",
            ),
            (
                rebound,
                "for a module with `inplace=True` that has the hook itself, set `inplace=False`",
                "or `.clone()` the tensor before the write",
            ),
        )
    return Told(
        f"{what} is a view that the custom Function `{maker}` returned, and this line writes to it",
        (
            f"a write to a view is told to autograd through the view's base, which would go around "
            f"`{maker}.backward`",
        ),
        (f"return a copy from `{maker}.forward` (`.clone()`)", f"or {rebound}"),
    )


def _inference(match: re.Match[str], scene: Scene) -> Told:
    what = {
        "Inference": "a tensor made under `inference_mode` is used where backward would need it",
        "Inplace": f"{scene.named('the written tensor')} was made under `inference_mode`, and this line writes to it",
        "Setting": "a tensor made under `inference_mode` can't be made to require grad",
    }[match["first"]]
    return Told(
        what,
        ("such tensors have no version counter, so autograd could not tell whether they changed",),
        (
            "make it under `torch.no_grad()` instead of `torch.inference_mode()`",
            "or `.clone()` it outside the block",
        ),
    )


def _dirty(match: re.Match[str], scene: Scene) -> Told:
    if match["missing"]:
        return Told(
            "a custom Function marked an input as written (`ctx.mark_dirty`) and did not return it",
            ("autograd hangs the Function's backward on what `forward` returns",),
            ("return every tensor given to `ctx.mark_dirty` from `forward`",),
        )
    return Told(
        "a custom Function writes to an input that is a view, and returns more than one tensor",
        (),
        (
            "`.clone()` the input before the call",
            "or split the Function in two: one that writes and returns only that tensor",
        ),
    )


def _metadata(match: re.Match[str], scene: Scene) -> Told:
    if match["resize"]:
        return Told(
            f"{scene.named('the tensor')} requires grad, and this line would resize it",
            ("its gradient would have no shape to have",),
            ("make a new tensor of the wanted size and copy into it, or resize under `.detach()`",),
        )
    if match["dtype"]:
        return Told(
            f"{scene.named('the tensor')} requires grad, and this line gives it data that can't have a gradient",
            (),
            ("assign floating point or complex data, or set `requires_grad_(False)` first",),
        )
    if match["flag"]:
        return Told(
            "this line would change `requires_grad` of a tensor that an op computed",
            ("whether such a tensor requires grad follows from what it was computed from",),
            ("to stop the gradient here, use `x = x.detach()`",),
        )
    return Told(
        f"`.data =` would turn {scene.named('the tensor')} into another kind of tensor (layout or device)",
        (),
        ("make a new tensor, or a new `nn.Parameter`, and put it in the old one's place",),
    )


_SEVERAL = {
    "Unbind": "`unbind`",
    "Split": "`split` or `chunk`",
    "SplitWithSizes": "`split`",
    "UnsafeSplit": "`unsafe_split`",
}


def _maker(node: str) -> str:
    if not node:
        return "one of several views that one call returned"
    name = bare(node)
    if name in _SEVERAL:
        return f"one of the views that {_SEVERAL[name]} returned"
    if knowledge_of(name) is not None:  # a[0] of such a view: PyTorch names only the last step
        return "a view of one that `split`, `chunk` or `unbind` returned"
    return f"one of the views that the custom Function `{name}` returned"


def _iterated(scene: Scene) -> tuple[str, str] | None:
    """`for row in x:` around the line, where it writes to `row`: ("row", "x")."""
    if scene.source is None or scene.statement is None or scene.written is None:
        return None
    for up in scene.source.ancestors(scene.statement):
        match up:
            case ast.For(target=ast.Name(id=name), iter=ast.Name() | ast.Attribute() as over):
                if name == scene.written:
                    return name, ast.unparse(over)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                return None
    return None


_VIEW = r"Output \d+ of (?P<maker>\w+) is a view and .{0,80}modified inplace"


def _transformed(match: re.Match[str], scene: Scene) -> Told:
    """A transform of torch.func refuses a write."""
    if match["norm"]:
        return Told(
            "BatchNorm updates its running statistics here, under vmap, and they have no batch",
            (
                "vmap calls the module once for all samples, so there is one set of statistics for many values",
            ),
            (
                "before vmap, call `torch.func.replace_all_batch_norm_modules_(net)`, or `net.eval()`",
                "or make the layer with `track_running_stats=False`",
            ),
        )
    what = scene.named("the written tensor")
    if match["captured"]:
        message = (
            f"{what} comes from outside the function that torch.func transforms, and this line writes to it"
        )
        notes = ("grad, vjp and jvp can't record a write to a tensor that the function was not given",)
        helps = ["make a new tensor, and return it beside the result where it is to last (`has_aux=True`)"]
        if scene.rebound:
            helps[0] = (
                f"make a new tensor: `{scene.rebound}`; to keep it, return it beside the result (`has_aux=True`)"
            )
        return Told(message, notes, (*helps, f"or make {what} an argument of the function"))
    what = scene.named("the written tensor").partition("[")[0].rstrip("`")
    what = f"{what}`" if what.startswith("`") else what
    return Told(
        f"{what} has no batch, and under vmap this line writes a value for each sample into it",
        ("vmap runs the function once, for all samples: what it writes to must hold one value for each",),
        (
            f"make {what} from a batched input, for example `x.new_zeros(...)` or `torch.zeros_like(x)`",
            "or write out of place: collect the pieces and `torch.stack` them",
        ),
    )


CAUSES: tuple[Cause, ...] = (
    cause(
        "GM136",
        r"transform, the function provided attempted to call in-place operation .{0,80}(?P<captured>mutate a captured Tensor)"
        r"|vmap: [\w ]+\(self, \*extra_args\) is not possible because there exists a Tensor `other` in extra_args"
        r"|(?P<norm>Batch norm got a batched tensor as input while the running_mean or running_var)",
        _transformed,
    ),
    cause(
        "GM122",
        r"Output \d+ of \w+ is a view and its base or another view of its base has been modified inplace\. "
        r"This view is the output of a function that returns multiple views",
        _read_view,
    ),
    cause(
        "GM121",
        r"a (?P<view>view of a )?leaf Variable that requires grad (is being|has been) used in an in-place"
        r"|leaf variable has been moved into the graph interior",  # up to PyTorch 1.5
        _leaf,
    ),
    cause(
        "GM122", _VIEW + r"\. This view is the output of a function that returns multiple views", _multi_view
    ),
    cause(  # PyTorch speaks of no_grad where the base did not require grad yet
        "GM122",
        r"view was created in no_grad mode and is being modified inplace.{0,40}"
        r"(?P<maker>)This view is the output of a function that returns multiple views",
        _multi_view,
    ),
    cause(
        "GM122",
        r"view was created in no_grad mode and its base or another view.{0,80}modified inplace.{0,40}"
        r"This view is the output of a function that returns multiple views",
        _read_view,
    ),
    cause(
        "GM123",
        r"view was created in (?P<mode>no_grad|inference) mode.{0,120}modified inplace",
        _guarded_view,
    ),
    cause("GM124", r"more than one element of the written-to tensor refers to a single memory", _expanded),
    cause("GM125", r"(?P<op>\w+)\(\): functions with out=\.\.\. arguments don't support automatic", _out),
    cause("GM126", r"Can't detach views in-place", _detach_view),
    cause("GM127", _VIEW + r"\. This view was created inside a custom Function", _function_view),
    cause(
        "GM128",
        r"(?P<first>Inference|Inplace|Setting) (tensors cannot be saved for backward"
        r"|update to inference tensor outside|requires_grad=True on inference tensor)",
        _inference,
    ),
    cause("GM129", r"some elements of the input tensor and the written-to tensor refer to", _overlap),
    cause(
        "GM120",
        r"(?P<missing>Some elements marked as dirty during the forward method were not returned)"
        r"|If your Function modifies inplace an input that is a view of another Tensor",
        _dirty,
    ),
    cause(
        "GM130",
        r"(?P<resize>cannot resize variables that require grad)"
        r"|(?P<dtype>data set to a tensor that requires gradients must be floating point)"
        r"|(?P<flag>you can only change requires_grad flags of leaf variables)"
        r"|Attempted to call `variable\.set_data\(tensor\)`",
        _metadata,
    ),
)
