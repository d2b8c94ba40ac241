"""What nobody caught ends the program as under python: by the program's own hooks, without frames of ours."""

import signal
import sys

import pytest
from programs import BROKEN, MODES, Program, launch

# `tokenize` first: linecache asks for it in the hook (3.13), and a string that is evaluated there, as its named tuples are,
# makes python forget that the program was interrupted.
HOOK = """
import sys, tokenize, traceback
def hook(kind, error, trace):
    print("hook", kind.__name__, error, sys.exc_info()[0], sys.last_value is error, trace is error.__traceback__)
    print(*[(f.name, f.lineno) for f in traceback.extract_tb(trace)])
    if error.__context__ is not None:
        print(*[(f.name, f.lineno) for f in traceback.extract_tb(error.__context__.__traceback__)])
sys.excepthook = hook
"""
RAISES = {
    "error": "def f():\n    1 / 0\nf()\n",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError(3)\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "exit": "sys.exit(3)\n",
    "exit-in-words": "sys.exit('no more')\n",
}


def words_of_audit_apart(err):
    return "".join(line for line in err.splitlines(True) if not line.startswith("gradmend audit:"))


@MODES
@pytest.mark.parametrize("raises", RAISES.values(), ids=RAISES)
def test_the_programs_hook_is_called(tmp_path, mode, raises):
    program = Program(tmp_path, HOOK + raises)
    plain, ours = program.python(), program.gradmend(before=mode)
    assert (ours.code, ours.out, words_of_audit_apart(ours.err)) == (plain.code, plain.out, plain.err)


@MODES
@pytest.mark.parametrize(
    "hook",
    [
        "def hook(*_):\n    raise ValueError('of the hook')\nsys.excepthook = hook",
        "sys.excepthook = lambda *_: sys.exit(7)",
        "sys.excepthook = None",
        "threading.excepthook = lambda told: print(told.exc_type.__name__, told.exc_traceback.tb_next.tb_next.tb_lineno)",
        "sys.unraisablehook = lambda told: print('unraisable', told.exc_type.__name__, told.exc_traceback.tb_lineno)",
    ],
    ids=["raises", "exits", "none", "thread", "unraisable"],
)
def test_hooks_of_every_kind(tmp_path, mode, hook):
    program = Program(
        tmp_path,
        "import sys, threading\n" + hook + "\n"
        "class Fails:\n    def __del__(self):\n        raise KeyError\n"
        "Fails()\n"
        "def work():\n    raise IndexError\n"
        "thread = threading.Thread(target=work, name='T')\nthread.start()\nthread.join()\n"
        "1 / 0\n",
    )
    plain, ours = program.python(), program.gradmend(before=mode)

    def same(err):  # but for addresses
        return [line for line in words_of_audit_apart(err).splitlines() if " at 0x" not in line]

    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert same(ours.err) == same(plain.err)


def test_the_story_follows_the_hook(tmp_path):
    ran = Program(tmp_path, HOOK + BROKEN).gradmend()
    assert ran.code == 1
    assert ran.out.startswith("hook ConflictError one of the variables needed for gradient computation")
    assert "('<module>', " in ran.out and "[GM101]" in ran.err
    assert "Traceback" not in ran.err


def test_a_hook_that_ends_the_process(tmp_path):
    ends = "import os, sys\nsys.excepthook = lambda *_: os._exit(9)\n"
    ran = Program(tmp_path, ends + BROKEN).gradmend()
    assert ran.code == 9
    assert ran.report["outcome"] == "conflict" and "[GM101]" in ran.err


def test_the_flight_recorders_hook_says_nothing_twice(tmp_path):
    """Armed from the environment, too: where the .pth file is not installed, this is a plain run."""
    ran = Program(tmp_path, BROKEN).gradmend(env={"GRADMEND": "1"})
    assert ran.code == 1 and ran.err.count("[GM101]") == 1


@MODES
def test_an_interrupt_is_told_and_ends_by_the_signal(tmp_path, mode):
    program = Program(tmp_path, "raise KeyboardInterrupt\n")
    plain, ours = program.python(), program.gradmend(before=mode)
    assert (ours.code, words_of_audit_apart(ours.err)) == (plain.code, plain.err)
    assert ours.code == -signal.SIGINT and ours.report["outcome"] == "failed"


def test_an_exit_code_of_130_is_no_interrupt(tmp_path):
    assert Program(tmp_path, "import sys\nsys.exit(130)\n").gradmend().code == 130


@MODES
@pytest.mark.parametrize(
    "text", ["x = (\n", "print(1)\nx = = 2\n", "def f():\nreturn 1\n", "x = 1\n\0\n"], ids=list("abcd")
)
def test_a_script_with_a_syntax_error(tmp_path, mode, text):
    program = Program(tmp_path, text)
    plain, ours = program.python(), program.gradmend(before=mode)
    assert (ours.code, ours.out) == (plain.code, plain.out) == (1, "")
    got, want = (words_of_audit_apart(err).splitlines() for err in (ours.err, plain.err))
    assert got[0] == want[0] and "Error: " in got[-1]
    if "\0" not in text:
        assert got == want
    assert ours.report["outcome"] == "failed" and ours.report["error"]["type"] in (
        "SyntaxError",
        "IndentationError",
    )


def test_a_package_that_fails_as_it_loads(tmp_path):
    Program(tmp_path, "1 / 0\n", "pkg/__init__.py")
    Program(tmp_path, "", "pkg/inner.py")
    ours = launch([sys.executable, "-m", "gradmend", "run", "-m", "pkg.inner"], tmp_path)
    assert ours.code == 1 and "ZeroDivisionError" in ours.err and "gradmend" not in ours.err


def test_a_warning_of_the_compiler_comes_once(tmp_path):
    program = Program(tmp_path, "x = '\\d'\n")
    words = [sys.executable, "-W", "always", "-m", "gradmend", "run", str(program.path)]
    assert launch(words, tmp_path).err.count("invalid escape") == 1


def test_all_that_was_healed_is_counted_when_the_program_exits(tmp_path):
    loop = "import sys\nfor _ in range(3):\n    import torch\n    x = torch.ones(3, requires_grad=True)\n"
    loop += "    y = x.exp()\n    y += 1\n    y.sum().backward()\nsys.exit(0)\n"
    ran = Program(tmp_path, loop).gradmend(before=["--heal"])
    assert "healed 3 overwritten values" in ran.err and ran.report["conflicts"][0]["times"] == 3
