from __future__ import annotations

import io
import traceback
from pathlib import Path

import pytest
import torch
from broken_programs import fail
from rich.console import Console
from rich.traceback import Traceback

from gradmend.story.failures.traceback_text import frames_in, read

PROGRAM = """
import torch
def step(t):
    t += 1  # <- here
w = torch.ones(3, requires_grad=True)
step(w)
"""
LEAF = "a leaf Variable that requires grad is being used in an in-place operation."


def test_pythons_own(tmp_path: Path) -> None:
    exc, file, line = fail(tmp_path, PROGRAM)
    printed = read("".join(traceback.format_exception(exc)))
    assert printed.message == str(exc) == LEAF
    assert printed.error_type == "RuntimeError"
    assert [(f.file, f.line, f.function) for f in printed.site.users[:2]] == [
        (file, line, "step"),
        (file, line + 2, "<module>"),
    ]


def test_a_chain_tells_the_last_error(tmp_path: Path) -> None:
    program = PROGRAM.replace("step(w)", "try:\n    1 / 0\nexcept ZeroDivisionError:\n    step(w)")
    exc, _, line = fail(tmp_path, program)
    printed = read("".join(traceback.format_exception(exc)))
    assert printed.message == LEAF
    assert printed.site.user is not None and printed.site.user.line == line


@pytest.mark.parametrize("width", [60, 100, 200])
def test_richs_boxes(tmp_path: Path, width: int) -> None:
    exc, _, line = fail(tmp_path, PROGRAM, "p.py")
    out = io.StringIO()
    trace = Traceback.from_exception(type(exc), exc, exc.__traceback__, show_locals=True)
    Console(file=out, width=width, force_terminal=True, color_system="standard").print(trace)
    printed = read(out.getvalue())
    assert printed.message == LEAF
    if width >= 100:  # a path cut in two by a narrow box is a path no more
        assert printed.site.user is not None
        assert (printed.site.user.line, printed.site.user.function) == (line, "step")


IPYTHON = """
---------------------------------------------------------------------------
RuntimeError                              Traceback (most recent call last)
Cell In[7], line 12
     10 out = net(x)
     11 loss = out.mean()
---> 12 loss.backward()

File ~/env/lib/python3.10/site-packages/torch/_tensor.py:525, in Tensor.backward(self, gradient, retain_graph)
    515 if has_torch_function_unary(self):
--> 525 torch.autograd.backward(

File C:\\env\\Lib\\site-packages\\torch\\autograd\\__init__.py:267, in backward(tensors, grad_tensors)
--> 267 _engine_run_backward(

RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors after they have
already been freed).
"""

OLD_IPYTHON = """
<ipython-input-9-1f2e3d> in <module>
      5     loss = step(batch)
----> 6     loss.backward()
      7

/usr/local/lib/python3.7/dist-packages/torch/tensor.py in backward(self, gradient, retain_graph, create_graph)
    219                 inputs=inputs)
--> 220         torch.autograd.backward(self, gradient, retain_graph, create_graph)

RuntimeError: Trying to backward through the graph a second time
"""


def test_notebooks() -> None:
    printed = read(IPYTHON)
    assert [(f.line, f.owner) for f in printed.site.frames] == [(267, "torch"), (525, "torch"), (12, "user")]
    assert printed.site.user is not None and printed.site.user.file == "In [7]"
    assert printed.message.endswith("already been freed).")
    old = read(OLD_IPYTHON)
    assert [(f.line, f.owner) for f in old.site.frames] == [(220, "torch"), (6, "user")]


def test_log_prefixes_colours_and_pytest() -> None:
    ranked = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/w/t.py", line 3, in <module>\n[rank0]: RuntimeError: x'
    assert [(f.file, f.line) for f in read(ranked).site.frames] == [("/w/t.py", 3)]
    assert read(ranked).message == "x"
    coloured = '  File \x1b[35m"/w/t.py"\x1b[0m, line \x1b[35m3\x1b[0m, in \x1b[35mf\x1b[0m\n\x1b[1;35mRuntimeError\x1b[0m: \x1b[35mx\x1b[0m'
    assert [(f.file, f.line, f.function) for f in read(coloured).site.frames] == [("/w/t.py", 3, "f")]
    assert read(coloured).message == "x"
    tested = "t/test_net.py:8: in test_step\n    step()\nt/net.py:3: RuntimeError\nE   RuntimeError: x"
    assert [(f.file, f.line) for f in frames_in(tested)] == [("t/test_net.py", 8), ("t/net.py", 3)]
    assert read(tested).message == "x"


def test_cut_off_texts() -> None:
    tail = '    loss.backward()\n  File "/e/site-packages/torch/_tensor.py", line 6, in backward\nRuntimeError: x y'
    assert read(tail).message == "x y"
    assert [f.owner for f in read(tail).site.frames] == ["torch"]
    bare = "one of the variables needed"
    assert read(bare).message == bare and not read(bare).site.frames
    assert not read("").found


def test_anomaly_mode_gives_the_line_that_kept_the_tensor(tmp_path: Path) -> None:
    program = "import torch\nx = torch.ones(3, requires_grad=True)\ny = x.exp()  # <- here\ny += 1\ny.sum().backward()\n"
    with pytest.warns(UserWarning, match="Error detected") as caught, torch.autograd.set_detect_anomaly(True):
        exc, file, line = fail(tmp_path, program)
    warned = next(w for w in caught if "Error detected" in str(w.message))
    text = f"graph.py:1: UserWarning: {warned.message}\n" + "".join(traceback.format_exception(exc))
    printed = read(text)
    assert printed.forward_node == "ExpBackward0"
    assert printed.forward.user is not None
    assert (printed.forward.user.file, printed.forward.user.line) == (file, line)
    assert printed.site.user is not None and printed.site.user.line == line + 2
    assert printed.message == " ".join(str(exc).split())
