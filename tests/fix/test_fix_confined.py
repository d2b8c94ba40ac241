"""Trials reach nothing outside their copy, whatever the program starts; with the kernel's help, and without it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fix_trials import Make

from gradmend.fix.trials import confine

# Each tries to put something into a file outside, and swallows what hinders it.
WAYS = {
    "shell": "os.system(f'echo x >> {outside}')",
    "subprocess": "subprocess.run(['sh', '-c', f'echo x >> {outside}'])",
    "fork_exec": "pid = os.fork()\n    if not pid:\n        os.execv('/bin/sh', ['sh', '-c', f'echo x >> {outside}'])\n    os.waitpid(pid, 0)",
    "libc": "ctypes.CDLL(None).system(f'echo x >> {outside}'.encode())",
    "python": "open(outside, 'a').write('x')",
    "symlink": "os.symlink(os.path.dirname(outside), 'out'); open('out/' + os.path.basename(outside), 'a').write('x')",
    "shell_symlink": "os.system(f'ln -s {os.path.dirname(outside)} out && echo x >> out/{os.path.basename(outside)}')",
    "fd": "fd = os.open(outside, os.O_RDONLY); open(f'/proc/self/fd/{fd}', 'a').write('x')",
    "shell_fd": "fd = os.open(outside, os.O_RDONLY); os.set_inheritable(fd, True); subprocess.run(['sh', '-c', f'echo x >> /proc/self/fd/{fd}'], close_fds=False)",
    "rename": "open('mine', 'w').write('x'); os.replace('mine', outside)",
    "remove": "os.remove(outside)",
    "shell_remove": "os.system(f'rm -f {outside}')",
}

PROGRAM = """
import ctypes, os, subprocess
import torch
outside = {outside!r}
try:
    {way}
except BaseException as why:
    print("hindered", type(why).__name__)
x = torch.ones(2, requires_grad=True)
x.exp().sum().backward()
"""


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "python"])
def test_nothing_outside_changes(
    runner: Make,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    kernel: bool,
) -> None:
    if kernel and not confine.version():
        pytest.skip("this kernel has no Landlock")
    outside = tmp_path_factory.mktemp("outside") / "file"
    outside.write_text("as it was\n")
    source = PROGRAM.format(outside=str(outside), way=WAYS[way])
    run = runner(source).run({}, "plain", kernel=kernel)
    assert run.outcome in ("finished", "error"), run.why
    assert bool(run.extra.get("confined")) == kernel
    assert outside.exists() and outside.read_text() == "as it was\n"


def test_a_refused_process_is_told_with_the_way_to_allow_it(runner: Make) -> None:
    trials = runner(
        "import os, torch\nos.system('true')\ntorch.ones(1, requires_grad=True).sum().backward()\n"
    )
    refused = trials.run({}, "plain", kernel=False)
    assert refused.error and "--allow-processes" in refused.error["message"]
    assert trials.run({}, "plain", kernel=False, allow=["processes"]).outcome == "finished"


def test_connections_are_refused_and_can_be_allowed(runner: Make) -> None:
    source = """
import socket, torch
s = socket.socket()
s.settimeout(0.2)
s.connect(("192.0.2.1", 9))
"""
    trials = runner(source)
    refused = trials.run({}, "plain")
    assert (
        refused.error
        and refused.error["type"] == "PermissionError"
        and "--allow-network" in refused.error["message"]
    )
    allowed = trials.run({}, "plain", allow=["network"])
    assert allowed.error and allowed.error["type"] != "PermissionError"


def test_what_a_program_may_do_in_its_copy(runner: Make, tmp_path: Path) -> None:
    source = """
import os, subprocess, sys, tempfile
import torch
open("log.txt", "w").write("a")
os.system("echo b >> log.txt")
os.makedirs("runs/1")
os.replace("log.txt", "runs/1/log.txt")
with tempfile.NamedTemporaryFile() as file:
    file.write(b"c")
torch.save(torch.ones(2), "runs/model.pt")
print(open("runs/1/log.txt").read().split())
x = torch.ones(2, requires_grad=True)
x.exp().sum().backward()
"""
    run = runner(source).run({}, "plain")
    assert run.outcome == "finished", run.why
    if confine.version():
        assert "['ab']" in run.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["main.py"]


@pytest.mark.skipif(not confine.version(), reason="this kernel has no Landlock")
def test_the_kernel_confines_children_of_children(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    code = (
        "from gradmend.fix.trials.confine import confine; import os\n"
        f"confine({str(inside)!r}, ['network'], {{}}, False)\n"
        f'os.system("sh -c \'sh -c \\"echo x > {inside}/a; echo x > {outside}/a\\"\' 2>/dev/null")\n'
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
    assert (inside / "a").exists() and not (outside / "a").exists()


# What each tries to do to a file outside, to one beside the script, to a socket or a process; `kernel` only: by a child.
REACHES = {
    "time": "os.utime(outside, (1, 1))",
    "time_of_a_file_beside": "pathlib.Path('stamp').touch()",
    "mode": "os.chmod(outside, 0o777)",
    "attribute": "os.setxattr(outside, 'user.x', b'1')",
    "mode_by_a_child": "subprocess.run(['chmod', '777', outside])",
    "time_by_a_child": "subprocess.run(['touch', '-d', '@1', outside])",
    "shared_memory": "open(shared, 'w').write('x')",
    "shared_memory_removed": "os.unlink(shared)",
    "shared_memory_by_a_child": "os.system(f'echo x > {shared}')",
    "signal": "os.kill(process, 15)",
    "signal_by_a_child": "subprocess.run(['kill', str(process)])",
    "socket_by_path": "s = socket.socket(socket.AF_UNIX); s.connect(door); s.send(b'x')",
    "abstract_socket": "s = socket.socket(socket.AF_UNIX); s.connect('\\0' + name); s.send(b'x')",
    "abstract_socket_by_a_child": "subprocess.run([sys.executable, '-c', f'import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + {name!r})'])",
    "datagram_by_a_child": "subprocess.run([sys.executable, '-c', f'import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(bytes(1), ({host!r}, {port}))'])",
}
REACHING = """
import os, pathlib, socket, subprocess, sys
import torch
outside, shared, door, name, process, host, port = {given!r}
try:
    {way}
except BaseException as why:
    print("hindered", type(why).__name__)
x = torch.ones(2, requires_grad=True)
x.exp().sum().backward()
"""


@pytest.mark.parametrize("way", REACHES)
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "python"])
def test_nothing_outside_is_reached(
    runner: Make, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, way: str, kernel: bool
) -> None:
    folder = tmp_path_factory.mktemp("outside")
    outside, stamp = folder / "file", tmp_path / "stamp"
    shared = Path(f"/dev/shm/gradmend-test-{os.getpid()}-{way}-{kernel}")
    for path in (outside, stamp, shared):
        path.write_text("as it was\n")
    for path in (outside, stamp):
        os.utime(path, (1e9, 1e9))
    before = [os.stat(p) for p in (outside, stamp)]
    name = f"gradmend-test-{os.getpid()}-{way}-{kernel}"
    with (
        subprocess.Popen(["sleep", "60"]) as victim,
        socket.socket(socket.AF_UNIX) as door,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
    ):
        door.bind(str(folder / "door"))
        abstract.bind("\0" + name)
        datagrams.bind(("0.0.0.0", 0))
        for one in (door, abstract):
            one.listen()
            one.setblocking(False)
        datagrams.setblocking(False)
        host = socket.gethostbyname(socket.gethostname())
        port = datagrams.getsockname()[1]
        given = (str(outside), str(shared), str(folder / "door"), name, victim.pid, host, port)
        run = runner(REACHING.format(given=given, way=REACHES[way])).run({}, "plain", kernel=kernel)
        try:
            assert run.outcome == "finished", run.why
            assert victim.poll() is None
            for one in (door.accept, abstract.accept, lambda: datagrams.recvfrom(9)):
                with pytest.raises(BlockingIOError):
                    one()
            after = [os.stat(p) for p in (outside, stamp)]
            assert [(s.st_mtime, s.st_mode) for s in after] == [(s.st_mtime, s.st_mode) for s in before]
            assert not os.listxattr(outside)
            assert shared.read_text() == "as it was\n"
        finally:
            victim.kill()
            shared.unlink(missing_ok=True)


def test_workers_and_shared_memory_of_the_trial_itself(runner: Make) -> None:
    source = """
import multiprocessing, os, torch
from torch.utils.data import DataLoader

def square(i):
    return i * i

if __name__ == "__main__":
    print([b.tolist() for b in DataLoader(torch.arange(4.0), batch_size=2, num_workers=2)])
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(square, range(3)))
    torch.ones(8).share_memory_()
    x = torch.ones(2, requires_grad=True)
    x.exp().sum().backward()
"""
    run = runner(source).run({}, "plain")
    assert run.outcome == "finished", (run.why, run.stderr)
    assert "[[0.0, 1.0], [2.0, 3.0]]" in run.stdout and "[0, 1, 4]" in run.stdout
