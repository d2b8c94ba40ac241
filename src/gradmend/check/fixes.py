"""Rewrites that a finding proposes, as text edits. Safe ones keep the meaning whatever the types are."""

from __future__ import annotations

import ast

from gradmend.check.findings import Place, StaticFix, TextEdit


def clone_first(statement: ast.stmt, name: str, place: Place, safe: bool) -> StaticFix | None:
    """`y = y.clone()` on a line of its own before the write: same values, dtype and shape, in memory nobody else sees.

    It is safe where the tensor was made in this function and no other name reaches it; `alone.py` has the last word.
    """
    if place.line != statement.lineno:
        return None
    indent = " " * statement.col_offset
    edit = TextEdit(place.line, place.column, place.line, place.column, f"{name} = {name}.clone()\n{indent}")
    return StaticFix(f"clone `{name}` before it is changed", safe, (edit,))


def clone_where_read(read: list[ast.expr]) -> StaticFix | None:
    """`.clone()` behind each of these: for a statement that reads and writes one memory."""
    edits = []
    for one in read:
        line, end = one.end_lineno or one.lineno, (one.end_col_offset or one.col_offset) + 1
        edits.append(TextEdit(line, end, line, end, ".clone()"))
    if not edits:
        return None
    shown = dict.fromkeys(f"`{ast.unparse(one)}.clone()`" for one in read)
    return StaticFix(f"clone what the line reads: {', '.join(shown)}", False, tuple(edits))


def out_of_place(site: ast.AST) -> StaticFix | None:
    """`inplace=True` -> `inplace=False`, where it stands in the call itself."""
    if not isinstance(site, ast.Call):
        return None
    for keyword in site.keywords:
        value = keyword.value
        if keyword.arg == "inplace" and isinstance(value, ast.Constant) and value.value is True:
            end_line, end = value.end_lineno or value.lineno, value.end_col_offset or value.col_offset
            edit = TextEdit(value.lineno, value.col_offset + 1, end_line, end + 1, "False")
            return StaticFix("drop inplace=True", False, (edit,))
    return None


def no_grad_around(statement: ast.stmt, place: Place) -> StaticFix | None:
    """The statement inside `with torch.no_grad():`; left to people, who know whether the update is meant to be seen."""
    if statement.lineno != (statement.end_lineno or statement.lineno):
        return None
    indent = " " * statement.col_offset
    edit = TextEdit(
        place.line, place.column, place.line, place.column, f"with torch.no_grad():\n{indent}    "
    )
    return StaticFix("update under no_grad", False, (edit,))
