"""A wheel, tried where it was installed: watch, heal, the command line and a sparse product. Needs no test runner.

python tools/smoke.py [--compiled | --pure]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import gradmend

PROGRAM = """
import torch
x = torch.ones(3, requires_grad=True)
y = x.exp()
y += 1
y.sum().backward()
print("gradient", x.grad.tolist())
"""


def main(argv: list[str]) -> None:
    x = torch.ones(3, requires_grad=True)
    told = ""
    try:
        with gradmend.watch():
            y = x.exp()
            y += 1
            y.sum().backward()
    except gradmend.ConflictError as error:
        told = str(error)
    assert "+=" in told, "watch() did not name the write"
    with gradmend.heal():
        y = x.exp()
        y += 1
        y.sum().backward()
    assert torch.equal(x.grad, torch.ones(3).exp()), x.grad

    from gradmend.sparse import SparseTensor

    values = torch.ones(2, requires_grad=True)
    sparse = SparseTensor.from_coo(torch.tensor([[0, 1], [1, 0]]), values, (2, 2))
    (sparse @ torch.tensor([[3.0], [4.0]])).sum().backward()
    assert values.grad.tolist() == [4.0, 3.0], values.grad

    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(PROGRAM)
        command = [sys.executable, "-m", "gradmend", "run"]
        stopped = subprocess.run([*command, script], capture_output=True, text=True)
        assert stopped.returncode == 1 and "error[GM101]" in stopped.stderr, stopped.stderr
        healed = subprocess.run([*command, "--heal", script], capture_output=True, text=True)
        assert healed.returncode == 0 and "2.718" in healed.stdout, healed.stderr

    said = subprocess.run(
        [sys.executable, "-m", "gradmend", "--version"], capture_output=True, text=True
    ).stdout
    for wanted in ("compiled", "pure"):
        assert f"--{wanted}" not in argv or wanted in said, said
    print(said.strip(), "works with torch", torch.__version__)


if __name__ == "__main__":
    main(sys.argv[1:])
