"""A function that is tried on its own is judged by the grad mode of those who call it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradmend.check.files import check_file
from gradmend.check.run import check
from gradmend.check.settings import Settings

HELPER = """\
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.buf = torch.zeros(2, 3)
    def _renorm(self):
        self.fc.weight.div_(self.fc.weight.norm())
    def _note(self, x):
        torch.mul(self.fc(x), 2, out=self.buf)
    def forward(self, x):
        {call}
        return self.fc(x)
"""
QUIET = "with torch.no_grad():\n            self._renorm(); self._note(x)"
LOUD = "self._renorm(); self._note(x)"


def told(source: str) -> list[tuple[int, str, str]]:
    found = check_file("/nowhere/net.py", source.encode()).findings
    return [(f.place.line, f.rule, f.severity) for f in found]


@pytest.mark.parametrize("tail", ["", "net = Net()\nnet(torch.ones(2, 3)).sum()\n"])
def test_a_helper_that_is_called_under_no_grad(tail: str) -> None:
    assert told(HELPER.format(call=QUIET) + tail) == []
    exec(HELPER.format(call=QUIET) + "Net()(torch.ones(2, 3)).sum().backward()", {})
    loud = HELPER.format(call=LOUD) + tail
    assert told(loud) == [(9, "GM121", "error"), (11, "GM125", "error")]
    with pytest.raises(RuntimeError, match="leaf Variable"):
        exec(loud + "Net()(torch.ones(2, 3))", {})


@pytest.mark.parametrize(
    ("caller", "want"),
    [
        ("@torch.no_grad()\n    def step(self):\n        self._apply()", []),
        ("@torch.inference_mode()\n    def step(self):\n        self._apply()", []),
        ("@torch.no_grad()\n    def step(self):\n        self._go()\n    def _go(self):\n        self._apply()", []),
        ("def step(self):\n        self._apply()", [(7, "GM121", "warning")]),
        ("def step(self):\n        with torch.no_grad(), torch.enable_grad():\n            self._apply()", [(7, "GM121", "warning")]),
        ("@torch.no_grad()\n    def step(self):\n        self._apply()\n    def other(self):\n        self._apply()", [(7, "GM121", "warning")]),
        ("pass", [(7, "GM121", "warning")]),
    ],
)  # fmt: skip
def test_by_decorators_and_callers_of_callers(caller: str, want: list[tuple[int, str, str]]) -> None:
    source = "import torch\nclass Opt:\n    def __init__(self, n):\n        self.w = torch.nn.Parameter(torch.zeros(n))\n\n"
    source += f"    def _apply(self):\n        self.w.add_(1)\n    {caller}\n"
    assert told(source) == want


def test_a_function_that_trains_is_in_grad_mode() -> None:
    source = """\
import torch
def train():
    w = torch.ones(3, requires_grad=True)
    (w * 2).sum().backward()
    w -= 0.1 * w.grad
"""
    assert told(source) == [(5, "GM121", "error")]


def test_callers_in_the_other_files_that_are_checked(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("")
    helper, user = tmp_path / "pkg/helper.py", tmp_path / "pkg/user.py"
    helper.write_text(
        "import torch\nnet = torch.nn.Linear(3, 3)\n"
        "def trace(x, out):\n    torch.mul(net(x), 2, out=out)\n    return out\n"
    )
    files = [str(helper), str(user)]

    def found(text: str, cache: str | None = None) -> list[tuple[str, int, str, str]]:
        user.write_text(text)
        outcome = check(files, Settings(), jobs=1, cache=cache)
        return [(Path(f.place.file).name, f.place.line, f.rule, f.severity) for f in outcome.findings]

    quiet = "import torch\nfrom pkg.helper import trace\ndef update(x, out):\n    with torch.no_grad():\n        trace(x, out)\n"
    loud = quiet.replace("torch.no_grad()", "torch.enable_grad()")
    folder = str(tmp_path / "cache")
    want = [("helper.py", 4, "GM125", "warning")]
    for cache in (None, folder, folder):
        assert found(quiet, cache) == []
        assert found(loud, cache) == want
    assert found("x = 1\n") == want
    # The caller itself is called under no_grad, in a third file.
    between = loud.replace("with torch.enable_grad():", "if True:")
    assert found(between) == want
    third = tmp_path / "pkg/third.py"
    third.write_text(
        "import torch\nfrom pkg.user import update\n@torch.no_grad()\ndef run(x):\n    update(x, x)\n"
    )
    files.append(str(third))
    assert found(between) == []


TRACE = "import torch\nnet = torch.nn.Linear(3, 3)\ndef trace(x, out):\n    torch.mul(net(x), 2, out=out)\n    return out\n"
METHOD = """\
import torch
class Net:
    def __init__(self):
        self.w = torch.nn.Parameter(torch.zeros(3))
    def trace(self):
        self.w.add_(1)
"""
UNDER = "import torch\n{imports}\n@torch.no_grad()\ndef run(x):\n    {call}\n"
OTHER = "def trace(x, out=None):\n    return x\n"
# Whether the one that is called under no_grad is the one that writes.
NAMESAKES = {
    "another module's": (TRACE, "from pkg.other import trace", "trace(x)", False),
    "another module's, by its module": (TRACE, "from pkg import other", "other.trace(x)", False),
    "another module's, by a long name": (TRACE, "import pkg.other as o", "o.trace(x)", False),
    "one of its own": (TRACE, OTHER, "trace(x)", False),
    "a local name": (TRACE, "", "trace = print; trace(x)", False),
    "an object's": (TRACE, "", "x.trace()", False),
    "this module's": (TRACE, "from pkg.helper import trace", "trace(x, x)", True),
    "this module's, by its module": (TRACE, "from pkg import helper", "helper.trace(x, x)", True),
    "this module's, by another name": (TRACE, "from .helper import trace as t", "t(x, x)", False),
    "of everything": (TRACE, "from pkg.helper import *", "trace(x, x)", True),
    "handed on by another": (TRACE, "from pkg.handed import trace", "trace(x, x)", True),
    "a function, where a method is meant": (METHOD, "from pkg.other import trace", "trace(x)", False),
    "another class's own": (
        METHOD, "class Log:\n    def trace(self): pass\n    @torch.no_grad()\n    def run(self): self.trace()\n", "pass", False,
    ),
    "a class by its name": (METHOD, "class Log:\n    def trace(self): pass\n", "Log.trace(x)", False),
    "a base class's": (
        METHOD.replace("class Net:", "from pkg.user import Base\nclass Net(Base):"),
        "class Base:\n    def trace(self): pass\n    @torch.no_grad()\n    def run(self): self.trace()\n", "pass", True,
    ),
    "any object's": (METHOD, "", "x.trace()", True),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMESAKES)
def test_another_function_of_that_name(case: str, tmp_path: Path) -> None:
    helper, imports, call, quiet = NAMESAKES[case]
    texts = {
        "__init__": "",
        "helper": helper,
        "other": OTHER,
        "handed": "from pkg.helper import trace\n",
        "user": UNDER.format(imports=imports, call=call),
    }
    (tmp_path / "pkg").mkdir()
    for name, text in texts.items():
        (tmp_path / f"pkg/{name}.py").write_text(text)
    files = [str(tmp_path / f"pkg/{name}.py") for name in texts]
    found = [f.rule for f in check(files, Settings(), jobs=1, cache=None).findings]
    assert found == ([] if quiet else ["GM121" if helper != TRACE else "GM125"])
