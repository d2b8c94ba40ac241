"""The process that `warm` forks: it has imported what its forks will ask for, and nothing has run in it.

Requests are JSON lines on stdin, each a program to run; the answer is its exit code as `subprocess` has it, or null where it
took too long.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import sys
import tempfile
import time
import types

# torch._dynamo comes with the first optimizer or checkpoint, and takes longer than torch itself (2.13).
LOADED = (
    "torch",
    "torch._dynamo",
    "gradmend.api.watching",
    "gradmend.cli.run",
    "gradmend.running.runner",
    "gradmend.story.linking",
    "gradmend.story.failures.diagnosing",
    "gradmend.report.html",
)
AT_START = signal.getsignal(signal.SIGINT)


def load():
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # no fork looks through it, and none copies it for that


def next_program():
    """In a fork, the words of its program. Here, None at the end."""
    answers = os.fdopen(os.dup(1), "w")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            become(request)
            return request["words"]
        print(json.dumps(end_of(pid, request["timeout"])), file=answers, flush=True)
    return None


def end_of(pid, seconds):
    late, pause = time.monotonic() + seconds, 0.001
    while time.monotonic() < late:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(pause * 1.3, 0.02)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def become(request):
    """What an interpreter has from who starts it."""
    os.setsid()
    for number, (path, how) in enumerate(zip(request["files"], "rww", strict=True)):
        file = os.open(path, os.O_RDONLY if how == "r" else os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    heeded = {"heeded": signal.default_int_handler, "ignored": signal.SIG_IGN}.get(request["interrupt"])
    signal.signal(signal.SIGINT, AT_START if heeded is None else heeded)
    os.chdir(request["cwd"])
    if request["umask"] >= 0:
        os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None


def main_module():
    """An empty one, as python has at its start."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    return main.__dict__


def go(words):
    first, *rest = words
    if first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        main_module()
        return lambda: runpy._run_module_as_main(rest[0])
    names = main_module()
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        code = compile(rest[0], "<string>", "exec", dont_inherit=True)
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(os.path.abspath(first))
        names["__file__"] = os.path.abspath(first)
        with open(first, "rb") as file:
            code = compile(file.read(), names["__file__"], "exec", dont_inherit=True)
    return lambda: exec(code, names)


load()
words = next_program()
if words is not None:
    go(words)()
