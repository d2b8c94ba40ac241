"""Which functions of the user's own files a call may reach, read from the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gradmend.capture.sites import is_user_file
from gradmend.story.source import Source, parse

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Function(NamedTuple):
    file: str
    source: Source
    node: ast.FunctionDef | ast.AsyncFunctionDef
    bound: bool  # called as a method: the first parameter is not among the arguments


def functions_called(file: str, source: Source, call: ast.Call) -> list[Function]:
    """By name: functions of this file and of the modules it imports; of `x.f(...)` any method that is called f."""
    match call.func:
        case ast.Name(id=name):
            found = list(_defined(file, source, name, methods=False))
            for module, original in _imported_from(source, name):
                for other, tree in _user_module(file, module):
                    found += _defined(other, tree, original, methods=False)
            return found
        case ast.Attribute(value=value, attr=name):
            if isinstance(value, ast.Name):
                for module in _imported_as(source, value.id):
                    return [
                        f
                        for other, tree in _user_module(file, module)
                        for f in _defined(other, tree, name, methods=False)
                    ]
            found = list(_defined(file, source, name, methods=True))
            for module in {m for m, _ in _imported_from(source, None)}:
                for other, tree in _user_module(file, module):
                    found += _defined(other, tree, name, methods=True)
            return found
    return []


def parameter(function: Function, key: int | str) -> str | None:
    """What the function calls its argument, given by position or keyword."""
    arguments = function.node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    if isinstance(key, str):
        return key if key in names or key in {a.arg for a in arguments.kwonlyargs} else None
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.node.decorator_list)
    if function.bound and not static:
        names = names[1:]
    return names[key] if key < len(names) else None


def _defined(file: str, source: Source, name: str, methods: bool) -> Iterator[Function]:
    for node in ast.walk(source.tree):
        if isinstance(node, _FUNCTIONS) and node.name == name:
            method = isinstance(source.parents.get(node), ast.ClassDef)
            if method == methods:
                yield Function(file, source, node, method)


def _imported_from(source: Source, name: str | None) -> Iterator[tuple[str, str]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if name is None or (alias.asname or alias.name) == name:
                    yield node.module, alias.name


def _imported_as(source: Source, name: str) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    yield alias.name


def _user_module(file: str, name: str) -> Iterator[tuple[str, Source]]:
    """The source of a module, where it is the user's own."""
    loaded = getattr(sys.modules.get(name), "__file__", None)
    path = loaded or str(Path(file).parent / (name.replace(".", "/") + ".py"))
    if path.endswith(".py") and is_user_file(path):
        source = parse(path)
        if source is not None:
            yield path, source
