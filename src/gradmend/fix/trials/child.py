"""One trial run: the program under a policy, with everything its backward calls did written to a file."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import random
import sys
import tempfile
import traceback
import types
from dataclasses import asdict
from typing import Any

from gradmend.errors import attached
from gradmend.fix.trials.forgive_words import ours
from gradmend.fix.trials.left import Left
from gradmend.fix.trials.prefix import Copies, Resume, statements
from gradmend.fix.trials.record import Enough, Recorder


def run(request: dict[str, Any]) -> None:
    """Never returns normally to the caller's program: the process ends here."""
    report: dict[str, Any] = {"outcome": "broken", "calls": []}
    try:
        _redirect(request)
        try:
            report = _run(request)
        except Resume as again:  # in a fork of this run, for another one
            request = again.request
            _redirect(request)
            print(again.printed, end="")
            report = _resumed(request)
    except BaseException as why:
        report = {
            "outcome": "broken",
            "calls": [],
            "error": {"type": type(why).__name__, "message": str(why)},
        }
        traceback.print_exc()
    temporary = request["out"] + ".part"
    with open(temporary, "wb") as file:
        pickle.dump(report, file)
    os.replace(temporary, request["out"])
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


def _redirect(request: dict[str, Any]) -> None:
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"] + ".stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, request["out"] + ".stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        handle = os.open(name, flags, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False, errors="replace")
    sys.stderr = os.fdopen(2, "w", closefd=False, errors="replace", buffering=1)


def _run(request: dict[str, Any]) -> dict[str, Any]:
    import numpy as np
    import torch

    os.chdir(request["cwd"])
    mapping: dict[str, str] = request["mapping"]
    sys.path[:] = [request["path0"], *(_mapped(p, mapping) for p in sys.path if p not in ("", os.getcwd()))]
    sys.argv = [request["script"], *request["argv"]]
    sys.dont_write_bytecode = True
    own = os.path.join(request["scratch"], "own")
    os.makedirs(own, exist_ok=True)
    for name in ("TMPDIR", "XDG_CACHE_HOME", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR"):
        os.environ[name] = own
    tempfile.tempdir = own
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    extra: dict[str, Any] = {}
    _fix_seeds(extra)

    mode = request["mode"]
    recorder = Recorder(
        request["limit"],
        request["roots"],
        retain=request.get("retain", False),
        cut=request.get("cut", False),
    )
    recorder.install(mode)
    from gradmend.fix.trials.confine import confine
    from gradmend.fix.trials.guard import Guard

    with open(request["script"], "rb") as file:
        ranks = b"init_process_group" in file.read()
    confine(request["scratch"], request.get("allow", ()), extra, ranks, request.get("kernel", True))
    guard = Guard(request["scratch"])
    guard.own_memory = extra["confined"]
    guard.install()
    main = types.ModuleType("__main__")
    main.__file__ = request["script"]
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    if request.get("module"):
        main.__spec__ = importlib.util.find_spec(request["module"])
        assert main.__spec__ is not None
        main.__package__ = main.__spec__.parent
    sys.modules["__main__"] = main
    _stage[:] = [recorder, main, extra]
    return _execute(request, recorder, main, extra, 0)


_stage: list[Any] = []  # the recorder, the program's main module, what else was learned


def _resumed(request: dict[str, Any]) -> dict[str, Any]:
    """The rest of a program whose beginning has run already, in another copy of the files."""
    recorder, main, extra = _stage
    extra.pop("prefix", None)
    os.chdir(request["cwd"])
    sys.path[:] = [request["path0"], *sys.path[1:]]
    sys.argv[0] = main.__file__ = request["script"]
    recorder.limit, recorder.retain = request["limit"], request.get("retain", False)
    recorder.cut = request.get("cut", False)
    return _execute(request, recorder, main, extra, request["from_line"])


def _execute(
    request: dict[str, Any], recorder: Recorder, main: Any, extra: dict[str, Any], after: int
) -> dict[str, Any]:
    """Run the statements that end below line `after`."""
    mode = request["mode"]
    program = statements(request["script"])
    copies = Copies(request, recorder, extra)
    error: dict[str, Any] | None = None
    left = Left(next(iter(request["mapping"].values())))
    outcome = "finished"
    finish: list[Any] = []
    with contextlib.ExitStack() as stack:
        _policy(mode, request, recorder, stack, extra, finish)
        try:
            for code, line in program:
                if line > after:
                    exec(code, main.__dict__)
                    copies.offer(line)
        except Resume:
            raise
        except Enough:
            outcome = "stopped"
        except SystemExit as end:
            why = _behind(end)
            if why is not end:
                outcome, error = "error", _error(why, recorder)
                extra["carrier"] = _carrier(why)
            elif end.code not in (None, 0):
                outcome, error = "error", {"type": "SystemExit", "message": str(end.code), "stack": []}
        except BaseException as end:
            outcome, error = "error", _error(_behind(end), recorder)
            extra["carrier"] = _carrier(_behind(end))
            traceback.print_exc()
    for last in finish:
        last()
    return {
        "outcome": outcome,
        "error": error,
        "calls": recorder.calls,
        "state": recorder.state(main.__dict__),
        "live": sorted(recorder.live),
        "files": _files(recorder),
        "twice": recorder.twice,
        "several": any(len(optimizers) > 1 for optimizers in recorder.steppers.values()),
        "left": left.found() if outcome in ("finished", "stopped") else {},
        **extra,
    }


def _policy(
    mode: str, request: dict[str, Any], recorder: Recorder, stack: Any, extra: Any, finish: Any
) -> None:
    import torch

    if not request.get("inference", True):
        _no_inference()
    if mode == "plain":
        return
    if mode == "copies":
        from gradmend.fix.trials.copies import Copies
        from gradmend.fix.trials.live import Live

        copies, live = Copies(), Live(recorder)
        stack.enter_context(copies.hooks())
        stack.enter_context(live)
        finish.append(
            lambda: extra.update(
                refused=copies.refused, silent=copies.silent, by_detach=live.by_detach, doors=len(live.doors)
            )
        )
    elif mode == "heal":
        import gradmend

        session = stack.enter_context(gradmend.heal())
        finish.append(lambda: extra.update(conflicts=[c.as_json() for c in session.conflicts]))
    elif mode == "unchecked":
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t))
    elif mode == "forgive":
        from gradmend.fix.trials.forgive import Forgive

        forgive = stack.enter_context(Forgive(recorder))
        finish.append(lambda: extra.update(meanings=[w.meaning for w in forgive.writes]))
    elif mode in ("differences", "slopes"):
        from gradmend.fix.trials import slopes

        slopes.enter(mode, request, recorder, stack, extra, finish)
    elif mode == "memory":
        from gradmend.fix.trials.memory import Bytes

        meter = Bytes()
        stack.enter_context(meter)

        def first(outputs: Any, args: Any) -> None:
            extra["bytes"] = meter.peak
            raise Enough

        recorder.before = first  # type: ignore[method-assign]
    else:
        raise ValueError(f"unknown mode {mode}")


def _fix_seeds(extra: dict[str, Any]) -> None:
    """Seeds drawn from the clock would make each trial another program: they are the same in all, and that is told."""
    import numpy as np
    import torch

    homes: list[tuple[Any, str]] = [
        (random, "seed"),
        (np.random, "seed"),
        (np.random, "default_rng"),
        (torch, "seed"),
        (torch.random, "seed"),
    ]
    for home, name in homes:
        plain = getattr(home, name)

        def fixed(*args: Any, _plain: Any = plain, _home: Any = home, **kwargs: Any) -> Any:
            if (args and args[0] is not None) or kwargs:
                return _plain(*args, **kwargs)
            extra["seeded"] = True
            if _home in (torch, torch.random):
                torch.manual_seed(0)
                return 0
            return _plain(0)

        setattr(home, name, fixed)


def _no_inference() -> None:
    """`inference_mode` computes the same values as `no_grad`; its tensors only may not enter a graph."""
    import torch

    def plainly(mode: Any = True) -> Any:
        if callable(mode):  # used as a bare decorator
            return torch.no_grad()(mode)
        return torch.no_grad() if mode else contextlib.nullcontext()

    names: list[Any] = [torch, torch.autograd, torch.autograd.grad_mode]
    for home in names:
        home.inference_mode = plainly


def _mapped(path: str, mapping: dict[str, str]) -> str:
    real = os.path.realpath(path)
    for source, copy in mapping.items():
        if real == source or real.startswith(source + os.sep):
            return copy + real[len(source) :]
    return path


def _behind(end: BaseException) -> BaseException:
    """PyTorch's error, where the program caught it and raised another, or exited."""
    at: BaseException | None = end
    while at is not None:
        if ours(str(at)):
            return at
        at = at.__cause__ or at.__context__
    return end


def _error(why: BaseException, recorder: Recorder) -> dict[str, Any]:
    """The error with the user's lines that led to it, innermost first, with columns."""
    chain: list[dict[str, Any]] = []
    direct = True
    entries = list(traceback.walk_tb(why.__traceback__))
    for summary in reversed(traceback.StackSummary._extract_from_extended_frame_gen(_extended(entries))):  # type: ignore[attr-defined]
        if not recorder._mine(summary.filename):
            direct = direct and bool(chain)
            continue
        chain.append(
            {
                "file": summary.filename,
                "line": summary.lineno,
                "function": summary.name,
                "owner": "user",
                "col": summary.colno,
                "end_line": summary.end_lineno,
                "end_col": summary.end_colno,
            }
        )
    return {"type": type(why).__name__, "message": str(why), "stack": chain, "direct": direct}


def _carrier(why: BaseException) -> dict[str, Any] | None:
    """What held the graph that a second backward went into, where healing was there to see it."""
    conflict = attached(why)
    return asdict(conflict.carrier) if conflict is not None and conflict.carrier is not None else None


def _extended(entries: list[Any]) -> Any:
    from itertools import islice

    for frame, line in entries:
        lasti = frame.f_lasti
        spots = next(islice(frame.f_code.co_positions(), lasti // 2, None), None) if lasti >= 0 else None
        yield frame, (line, None, None, None) if spots is None else spots


def _files(recorder: Recorder) -> list[str]:
    found = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
    return sorted({f for f in found if f and f.endswith(".py") and os.path.isabs(f) and recorder._mine(f)})
