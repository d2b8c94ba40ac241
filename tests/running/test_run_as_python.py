"""`gradmend run SCRIPT` does what `python SCRIPT` does: output, exit code, argv, __main__, errors."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from programs import BROKEN, CLEAN, Program, launch

from warm import heed


def test_stdout_is_the_programs_own(tmp_path):
    program = Program(tmp_path, CLEAN)
    plain, ours = program.python(), program.gradmend(cold=True)
    assert (ours.code, ours.out) == (plain.code, plain.out) == (0, "gradient [2.0, 2.0, 2.0]\n")
    assert ours.report["outcome"] == "clean" and ours.report["conflicts"] == []
    assert ours.err == ""


def test_main_is_the_program(tmp_path):
    program = Program(
        tmp_path,
        """
        import pickle, sys
        class Thing:
            pass
        me = sys.modules["__main__"]
        print(__name__, __file__ == sys.argv[0], __spec__, __package__, __doc__, __builtins__ is not None)
        print(sys.argv[1:], sys.path[0])
        print(me.Thing is Thing, type(pickle.loads(pickle.dumps(Thing()))) is Thing)
        print(sorted(n for n in vars(me) if n.startswith("__")))
        """,
    )
    args = ["--flag", "-x", "a b", "--", "--report"]
    plain, ours = program.python(*args), program.gradmend(*args, cold=True)
    assert ours.out == plain.out
    assert ours.code == plain.code == 0


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("sys.exit()", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('bad weather')", 1),
        ("sys.exit(300)", 300 % 256),
        ("os._exit(5)", 5),
        ("raise ValueError('no')", 1),
    ],
)
def test_ends(tmp_path, statement, code):
    program = Program(tmp_path, f"import os, sys\nprint('out', flush=True)\n{statement}\n")
    plain, ours = program.python(), program.gradmend()
    assert (ours.code, ours.out) == (plain.code, plain.out)
    assert ours.code == code
    assert ours.err == plain.err
    assert ours.report is not None
    assert ours.report["outcome"] == ("failed" if "ValueError" in statement else "clean")


def test_an_error_of_the_program_is_in_the_report(tmp_path):
    program = Program(tmp_path, "def f():\n    raise ValueError('no such luck')\n\nf()\n")
    ran = program.gradmend()
    assert ran.report["error"] == {
        "type": "ValueError",
        "message": "no such luck",
        "file": str(program.path),
        "line": 2,
    }


def test_atexit_runs_and_threads_are_waited_for(tmp_path):
    program = Program(
        tmp_path,
        """
        import atexit, threading, time
        atexit.register(lambda: print("at exit"))
        def late():
            time.sleep(0.3)
            print("thread")
        threading.Thread(target=late).start()
        print("main")
        """,
    )
    plain, ours = program.python(), program.gradmend(cold=True)
    assert ours.out == plain.out == "main\nthread\nat exit\n"


def test_stdin_reaches_the_program(tmp_path):
    program = Program(tmp_path, "print(input()[::-1])\n")
    assert program.gradmend(stdin="hello\n").out == "olleh\n"


def test_a_forked_child_writes_no_report_of_its_own(tmp_path):
    program = Program(
        tmp_path,
        """
        import os, sys
        import torch
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        pid = os.fork()
        if pid == 0:
            sys.exit(8)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        x = torch.ones(3, requires_grad=True)
        y = x.exp(); y += 1
        y.sum().backward()
        """,
    )
    ran = program.gradmend()
    assert ran.out == "7\n8\n"
    assert ran.code == 1
    assert ran.report["outcome"] == "conflict"


def test_multiprocessing_spawn_finds_main_again(tmp_path):
    program = Program(
        tmp_path,
        """
        import multiprocessing as mp
        def double(x):
            return 2 * x
        class Box:
            def __init__(self, v): self.v = v
        def unbox(b):
            return b.v
        if __name__ == "__main__":
            with mp.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2, 3]), pool.map(unbox, [Box(5)]))
        """,
    )
    plain, ours = program.python(), program.gradmend(cold=True)
    assert ours.out == plain.out == "[2, 4, 6] [5]\n"
    assert ours.code == 0


@pytest.mark.slow
def test_dataloader_workers(tmp_path):
    program = Program(
        tmp_path,
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.arange(8.0))
        w = torch.ones((), requires_grad=True)
        for method in ("fork", "spawn"):
            if __name__ == "__main__":
                for (x,) in DataLoader(data, 4, num_workers=2, multiprocessing_context=method):
                    (w * x).sum().backward()
        if __name__ == "__main__":
            print(w.grad.item())
        """,
    )
    plain, ours = program.python(), program.gradmend()
    assert ours.out == plain.out == "56.0\n"
    assert ours.code == 0


def test_ctrl_c(tmp_path):
    program = Program(
        tmp_path,
        """
        import sys, time, torch
        x = torch.ones(2, requires_grad=True)
        (x * x).sum().backward()
        print("ready", flush=True)
        time.sleep(60)
        """,
    )
    report = tmp_path / "report.json"
    words = [sys.executable, "-m", "gradmend", "run", "--report", str(report), str(program.path)]
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        preexec_fn=heed,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    # As python itself: killed by the signal, so that a shell's loop stops too.
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in err
    assert "gradmend" not in err.replace(str(tmp_path), "")
    told = json.loads(report.read_text())
    assert told["outcome"] == "failed"  # what it did not reach was not looked at
    assert told["error"]["type"] == "KeyboardInterrupt"


def test_an_interrupted_program_ends_as_any_other(tmp_path):
    """Threads are waited for, `atexit` runs, what was printed is written, and only then the signal ends it."""
    program = Program(
        tmp_path,
        """
        import atexit, threading, time
        atexit.register(lambda: print("at exit"))
        def late():
            time.sleep(0.3)
            print("thread")
        threading.Thread(target=late).start()
        print("main")
        raise KeyboardInterrupt
        """,
    )
    buffered = {"PYTHONUNBUFFERED": ""}
    plain, ours = program.python(env=buffered), program.gradmend(env=buffered)
    assert (ours.code, ours.out) == (plain.code, plain.out) == (-signal.SIGINT, "main\nthread\nat exit\n")


def test_keyboard_interrupt_that_the_program_handles(tmp_path):
    program = Program(
        tmp_path,
        """
        import os, signal
        try:
            os.kill(os.getpid(), signal.SIGINT)
            while True: pass
        except KeyboardInterrupt:
            print("stopped cleanly")
        """,
    )
    ran = program.gradmend()
    assert (ran.code, ran.out) == (0, "stopped cleanly\n")


def test_ctrl_c_that_is_ignored(tmp_path):
    """Under nohup Python takes no SIGINT, and an interrupt of the program's own ends it as ever."""
    program = Program(
        tmp_path,
        """
        import os, signal
        os.kill(os.getpid(), signal.SIGINT)
        print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, flush=True)
        raise KeyboardInterrupt
        """,
    )
    plain, ours = program.python(interrupt="ignored"), program.gradmend(interrupt="ignored")
    assert (ours.code, ours.out) == (plain.code, plain.out) == (-signal.SIGINT, "True\n")


def test_module(tmp_path):
    Program(tmp_path, "", "pkg/__init__.py")
    Program(
        tmp_path,
        "import sys\nfrom . import other\nprint(__name__, __package__, sys.argv[1:], other.x)\n"
        "print(sys.argv[0], sys.path[0])\n",
        "pkg/__main__.py",
    )
    Program(tmp_path, "x = 3\n", "pkg/other.py")
    plain = launch([sys.executable, "-m", "pkg", "-v", "b"], tmp_path, cold=True)
    ours = launch([sys.executable, "-m", "gradmend", "run", "-m", "pkg", "-v", "b"], tmp_path)
    assert (ours.code, ours.out) == (plain.code, plain.out), ours.err


def test_a_directory_with_main(tmp_path):
    Program(tmp_path, "import sys, side\nprint(sys.argv, __name__)\n", "app/__main__.py")
    Program(tmp_path, "", "app/side.py")
    plain = launch([sys.executable, "app", "x"], tmp_path, cold=True)
    ours = launch([sys.executable, "-m", "gradmend", "run", "app", "x"], tmp_path)
    assert (ours.code, ours.out) == (plain.code, plain.out) == (0, "['app', 'x'] __main__\n")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: "missing.py", "missing.py"),
        (lambda folder: os.fspath(folder), "directory"),
        (lambda folder: "-z", "-z"),
    ],
    ids=["missing", "directory", "option"],
)
def test_bad_input_is_one_clear_line(tmp_path, make, says):
    report = tmp_path / "report.json"
    words = ["run", "--report", str(report), make(tmp_path)]
    ran = launch([sys.executable, "-m", "gradmend", *words], tmp_path, report)
    assert ran.code == 2
    assert ran.out == ""
    assert says in ran.err and "Traceback" not in ran.err
    assert len(ran.err.strip().splitlines()) <= 2  # argparse shows its usage first
    assert ran.report is None


@pytest.mark.slow
def test_more_bad_input(tmp_path):
    def run(*words):
        return launch([sys.executable, "-m", "gradmend", "run", *words], tmp_path)

    nothing = run()
    assert nothing.code == 2 and "no program" in nothing.err
    module = run("-m", "no_such_package_here")
    assert module.code == 2 and "no_such_package_here" in module.err and "Traceback" not in module.err
    folder = run("--report", "no/such/folder/out.json", os.fspath(Program(tmp_path, CLEAN).path))
    assert folder.code == 2 and "folder" in folder.err
    latin = tmp_path / "latin.py"
    latin.write_bytes("x = 'é'\n".encode("latin-1"))
    encoding = run(os.fspath(latin))
    assert encoding.code == 1 and "latin.py" in encoding.err and "Traceback" not in encoding.err  # as python


def test_a_script_run_by_relative_path_reports_absolute_files(tmp_path):
    program = Program(tmp_path, BROKEN, "inner/program.py")
    report = tmp_path / "r.json"
    ran = launch(
        [sys.executable, "-m", "gradmend", "run", "--report", "r.json", "inner/program.py"], tmp_path, report
    )
    assert ran.code == 1
    culprit = ran.report["conflicts"][0]["culprits"][0]
    assert (culprit["file"], culprit["line"]) == (str(program.path), program.line("y += 1"))
