"""Executing a script or a module in this process as the interpreter itself would."""

from __future__ import annotations

import os
import runpy
import sys
import types
import zipfile
import zipimport
from collections.abc import Callable, Sequence

from gradmend.errors import UsageError


def program(target: str, args: Sequence[str], is_module: bool) -> Callable[[], None]:
    return (module if is_module else script)(target, args)


def script(path: str, args: Sequence[str]) -> Callable[[], None]:
    """Read and compile a script now, so that a missing one is told before anything runs; return what runs it."""
    refuse_notebook(path)
    if os.path.isdir(path):
        inner = os.path.join(path, "__main__.py")
        if not os.path.isfile(inner):
            raise UsageError(f"{path} is a directory without a __main__.py: give a script")
        return _prepared(inner, args, path, os.path.abspath(path))
    if zipfile.is_zipfile(path):
        return _zipped(path, args)
    return _prepared(path, args, path, os.path.dirname(os.path.abspath(path)))


def refuse_notebook(path: str) -> None:
    if path.endswith(".ipynb"):
        raise UsageError(
            f"{path} is a notebook: run `%load_ext gradmend` in it and put `%%gradmend` on top of the cell to watch, "
            f"or make a script of it (jupyter nbconvert --to script {path})"
        )


def _zipped(path: str, args: Sequence[str]) -> Callable[[], None]:
    """`python app.zip` runs the __main__ in it."""
    try:
        loader = zipimport.zipimporter(os.path.abspath(path))
        code = loader.get_code("__main__")
    except zipimport.ZipImportError as error:
        raise UsageError(f"can't run {path}: {error}") from None
    except SyntaxError as error:
        return _raising(error)

    def go() -> None:
        main = types.ModuleType("__main__")
        main.__file__ = os.path.join(os.path.abspath(path), "__main__.py")
        main.__loader__ = loader
        main.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = main
        sys.argv[:] = [path, *args]
        sys.path[0:1] = [os.path.abspath(path)]
        exec(code, main.__dict__)

    return go


def _raising(error: Exception) -> Callable[[], None]:
    """What the interpreter can't compile ends the program, as under python: no usage error of ours."""

    def go() -> None:
        raise error.with_traceback(None)

    return go


def _prepared(path: str, args: Sequence[str], argv0: str, first_on_path: str) -> Callable[[], None]:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror or error}") from None
    absolute = os.path.abspath(path)  # as the interpreter has it since 3.9
    zero = data.find(b"\0")
    if zero >= 0:  # compile() names neither file nor line
        line = data.count(b"\n", 0, zero) + 1
        return _raising(SyntaxError("source code cannot contain null bytes", (absolute, line, None, None)))
    try:
        code = compile(data, absolute, "exec", dont_inherit=True)
    except Exception as error:
        return _raising(error)

    def go() -> None:
        main = types.ModuleType("__main__")
        main.__file__ = absolute
        main.__dict__["__builtins__"] = __builtins__
        main.__spec__ = None
        main.__dict__["__cached__"] = None
        if "__annotations__" in vars(sys.modules["__main__"]):  # the interpreter's own choice, by version
            main.__annotations__ = {}
        sys.modules["__main__"] = main
        sys.argv[:] = [argv0, *args]
        sys.path[0:1] = [first_on_path]
        exec(code, main.__dict__)

    return go


def module(name: str, args: Sequence[str]) -> Callable[[], None]:
    def go() -> None:
        sys.argv[:] = [name, *args]
        sys.path[0:1] = [os.getcwd()]
        runpy.run_module(name, run_name="__main__", alter_sys=True)

    import importlib.util

    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise UsageError(f"can't find the module {name}: {error}") from None
    except Exception:  # a package above it fails as it loads: the program's own end
        return go
    finally:
        sys.path.pop(0)
    if found is None:
        raise UsageError(f"no module named {name}")
    return go
