"""Notebooks and IPython: `%load_ext gradmend`, then `%%gradmend` on top of a cell.

    %%gradmend             watch this cell: stop at the first value that backward needs and lost
    %%gradmend heal        run it on with the right gradient
    %gradmend fix          the cells so far as one program: the proven edit
    %gradmend off          take it all off again

Cells go by the number that stands beside them, In [2], and the story is shown below the cell that failed. The HTML
has no scripts: it looks alike in JupyterLab, VS Code and Colab.
"""

from __future__ import annotations

import linecache
import os
from itertools import takewhile
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gradmend.errors import ConflictError, GradmendError, attached
from gradmend.model import Conflict, Session

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_USAGE = (
    "use %%gradmend [heal] [--paranoid] [--budget SIZE] on top of a cell, %gradmend fix, or %gradmend off"
)

CELL_MAGIC = "get_ipython().run_cell_magic("
_TIMED = ("<timed eval>", "<timed exec>")  # a cell below %%time


def load_ipython_extension(shell: InteractiveShell) -> None:
    import gradmend

    gradmend.install()  # cells without a magic get the story of PyTorch's own error too
    shell.register_magic_function(_line(shell), "line", "gradmend")
    shell.register_magic_function(_cell(shell), "cell", "gradmend")
    shell.set_custom_exc((RuntimeError,), _failed)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    import gradmend

    gradmend.uninstall()
    shell.set_custom_exc((), None)
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("gradmend", None)


def _cell(shell: Any) -> Any:
    def gradmend(line: str, cell: str) -> None:
        from gradmend.api.watching import Watching
        from gradmend.capture.memory.budget import parse

        words = line.split()
        if words[-1:] == ["--budget"]:
            raise UsageError("--budget takes a size: --budget 512MB")
        budget = words[words.index("--budget") + 1] if "--budget" in words else None
        known = {"watch", "heal", "--paranoid", "--budget", budget}
        if any(word not in known for word in words):
            raise UsageError(_USAGE)
        if cell.startswith("%%"):  # another magic below ours runs its code by itself: it must stand above
            other, _, body = cell.partition("\n")
            name, _, rest = other[2:].partition(" ")
            shell.run_cell_magic(name, rest, f"%%gradmend {line}\n{body}")
            return
        try:
            allowed = parse(budget)
        except ValueError as why:
            raise UsageError(str(why)) from None
        policy: Any = "heal" if "heal" in words else "watch"
        before = _numbers(shell)
        show, shell.showtraceback = shell.showtraceback, lambda *_, **__: None
        shell.set_custom_exc((), None)
        try:
            with Watching(policy, allowed, "--paranoid" in words, aloud=False) as session:
                # A line where each magic stands: line numbers are those that one sees.
                above = "".join(f"# {one}\n" for one in _magics(shell, cell) or [f"%%gradmend {line}"])
                result = shell.run_cell(above + cell, store_history=False)
        finally:
            _count_as(shell, before)
            shell.showtraceback = show
            shell.set_custom_exc((RuntimeError,), _failed)
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            raise error
        if session.conflicts:
            _show_session(shell, session)

    return gradmend


def _magics(shell: Any, cell: str) -> list[str]:
    """The lines of magics that stand above this code in the cell that runs, in the order in which they were written."""
    written: str = shell.history_manager.input_hist_raw[-1]
    lines = written.splitlines()
    magics = list(takewhile(lambda one: one.startswith("%%"), lines))
    return magics if "\n".join(lines[len(magics) :]).strip() == cell.strip() else []


def _numbers(shell: InteractiveShell) -> dict[str, int]:
    return dict(getattr(shell.compile, "_filename_map", {}))


def _count_as(shell: InteractiveShell, before: dict[str, int]) -> None:
    """What ran inside of a cell goes by that cell's number; IPython has counted on already."""
    number = max(before.values(), default=0)
    for file, other in _numbers(shell).items():
        if before.get(file) != other:
            shell.compile._filename_map[file] = number


def _line(shell: InteractiveShell) -> Any:
    def gradmend(line: str) -> None:
        if line.strip() == "off":
            unload_ipython_extension(shell)
        elif line.strip() == "fix":
            from gradmend.integrations.ipython_fix import fix

            fix(shell)
        else:
            raise UsageError(_USAGE)

    return gradmend


class UsageError(Exception):
    """Shown by IPython as one line."""

    def _render_traceback_(self) -> list[str]:
        return [f"gradmend: {self}"]


def _failed(
    shell: InteractiveShell,
    kind: type[BaseException],
    error: BaseException,
    trace: Any,
    tb_offset: Any = None,
) -> None:
    """The traceback without our frames, then the story below it."""
    conflict = attached(error)
    if conflict is None:
        from gradmend.api.installing import explain_forward

        explain_forward(error)
        conflict = attached(error)
    if conflict is None and not isinstance(error, GradmendError):
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
        return
    shown: BaseException = error
    if conflict is None:
        shown = kind(renamed(str(error), cells(shell)))
        shell.showtraceback((kind, shown, _users(trace)), tb_offset=0)
        return
    if isinstance(error, ConflictError):
        shown = type(error)("the story is below", conflict)
    else:  # the story that was added to PyTorch's error is shown as HTML
        shown = kind(*error.args)
    shell.showtraceback((type(shown), shown, _users(trace)), tb_offset=0)
    show(shell, [conflict])


def _users(trace: TracebackType | None) -> TracebackType | None:
    """The frames of the user's program: what follows the last of IPython's, without ours and torch's own."""
    from gradmend.capture.sites import is_user
    from gradmend.frames import chained

    kept: list[TracebackType] = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        magic = file in _TIMED or linecache.getline(file, trace.tb_lineno).startswith(CELL_MAGIC)
        if is_user(trace.tb_frame.f_code) and not magic:
            kept.append(trace)
        trace = trace.tb_next
    return chained(kept)


def show(shell: InteractiveShell, conflicts: list[Conflict], outcome: str = "conflict") -> None:
    """The stories as HTML, and as text where that is all one can see."""
    from gradmend.api.watching import words_of
    from gradmend.report.html import fragment
    from gradmend.report.saved import from_json

    names = cells(shell)
    data = [renamed(c.as_json(), names) for c in conflicts]
    told = from_json({"outcome": outcome, "conflicts": data}).conflicts
    healed = outcome == "healed"
    words = (words_of(c, healed=healed and c.kind != "refused-but-right") for c in told)
    _display("\n\n".join(words), fragment(data, outcome))


def _show_session(shell: InteractiveShell, session: Session) -> None:
    if session.outcome == "healed":
        from gradmend.running.output import healed_words

        words = f"gradmend: {healed_words(session.conflicts)}"
    else:
        words = "gradmend: PyTorch would refuse this, although every value that backward needs is as it was"
    print(words)
    show(shell, session.conflicts, session.outcome)


def _display(text: str, html: str) -> None:
    from IPython.display import display

    display({"text/plain": text, "text/html": html}, raw=True)


def cells(shell: InteractiveShell) -> dict[str, str]:
    """The file names that IPython gave its cells, and the numbers that people see. Sources are known by both."""
    found: dict[str, str] = {}
    for file, number in _numbers(shell).items():
        name = found[file] = f"In [{number}]"
        lines = linecache.getlines(file)
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return found


def renamed(part: Any, names: dict[str, str]) -> Any:
    """The same data with the cells' own names in every string."""
    if isinstance(part, dict):
        return {k: renamed(v, names) for k, v in part.items()}
    if isinstance(part, list | tuple):
        return [renamed(v, names) for v in part]
    if isinstance(part, str):
        for file, name in names.items():
            part = part.replace(file, name)
        for file, name in names.items():
            part = part.replace(os.path.basename(file), name)
    return part
