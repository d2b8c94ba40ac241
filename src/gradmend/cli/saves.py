"""`gradmend saves OP`: what an op keeps for backward, and whether its input or output may be written afterwards."""

from __future__ import annotations

import argparse
import json
import sys
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradmend.story.knowledge import Entry, Knowledge


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "saves",
        help="what an op keeps for backward, and what may be overwritten",
        description="Says what an op keeps for backward, from the installed torch: gradmend saves exp, "
        "gradmend saves mul_, gradmend saves '*=', gradmend saves F.cross_entropy.",
    )
    parser.add_argument("ops", nargs="+", metavar="OP", help="exp, mul_, '+=', F.softmax, ...")
    parser.add_argument("--json", action="store_true", help="as data")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from gradmend.story.knowledge import UnknownOp, saves

    known: list[Knowledge] = []
    unknown: list[UnknownOp] = []
    for op in args.ops:
        try:
            known.append(saves(op))
        except UnknownOp as error:
            unknown.append(error)
    if args.json and known:
        print(json.dumps([k.as_json() for k in known], indent=2))
    elif known:
        print("\n\n".join(text(k) for k in known))
    sys.stdout.flush()  # what is known comes first, also where both go into one file
    for each in unknown:
        print(f"gradmend saves: {each}", file=sys.stderr)
    return 2 if unknown else 0


def text(known: Knowledge) -> str:
    from gradmend.story.knowledge import by_node

    parts = [_headline(known)]
    parts += [_overload(e) for e in known.overloads if e.node]
    if known.measured:
        parts.append(f"  {known.note}\n  tried: {known.measured.call}")
        parts += [_overload(e) for n in known.measured.nodes for e in by_node(n).overloads if e.keeps]
    if known.known:
        parts.append("\n".join((_about_input(known), _about_output(known))))
    return "\n\n".join(parts)


def _headline(known: Knowledge) -> str:
    if known.overloads and not known.keeps:
        return f"{known.op} keeps none of its tensors for backward."
    if known.overloads:
        return f"{known.op} keeps {_and([known.name_of(s) for s in known.keeps])} for backward."
    if known.measured:
        kept = [f"`{name}`" for name in known.measured.kept_inputs]
        kept += ["its result"] if known.measured.keeps_output else []
        kept += ["values in between"] if known.measured.keeps_between else []
        return f"{known.op} keeps {_and(kept) or 'nothing'} for backward."
    return fill(known.note, 88)


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _overload(entry: Entry) -> str:
    from gradmend.capture.graph.reads import table
    from gradmend.story.knowledge._plain import plain

    lines = [f"  {entry.schema}"]
    unread = table().get(entry.node or "", {})
    for formula in entry.formulas:
        said = plain(entry.node, formula.inputs, formula.text)
        lines.append(f"    gradient of {', '.join(formula.inputs)}: {said}")
    for slot in entry.keeps:
        needed = {name for f in entry.readers(slot) for name in f.inputs}
        differentiable = {name for f in entry.formulas for name in f.inputs}
        only = f", if {' or '.join(sorted(needed))} needs a gradient" if needed != differentiable else ""
        never = (
            ", though backward never looks at its values: PyTorch refuses a write all the same"
            if unread.get(slot) == [{}]
            else ""
        )
        lines.append(f"    keeps {slot}{only}{never}")
    return "\n".join(lines)


def _about_input(known: Knowledge) -> str:
    if known.writing_input_is_safe:
        return "Writing to its input afterwards is safe: backward does not need it."
    names = known.kept_inputs or (known.measured.kept_inputs if known.measured else ())
    return f"Writing to {_and([f'`{n}`' for n in names])} between forward and backward is not safe."


def _about_output(known: Knowledge) -> str:
    if known.writing_output_is_safe:
        return "Writing to its result afterwards is safe: backward does not need it."
    names = [n for n in known.kept_results if n != "result"]
    what = _and([f"`{n}`" for n in names]) if names else "its result"
    return f"Writing to {what} between forward and backward is not safe."
