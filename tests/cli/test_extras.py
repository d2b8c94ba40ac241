"""What is not installed is named in one line, with the extra that brings it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

WITHOUT = """\
import sys
from importlib import util
find = util.find_spec
util.find_spec = lambda name, *rest: None if name == "libcst" else find(name, *rest)
from gradmend.cli.main import main
sys.exit(main(["fix", "train.py"]))
"""


def test_fix_names_its_extra() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "gradmend: fix: libcst is not installed: pip install 'gradmend[fix]'\n"


def test_only_small_packages_come_with_it_and_dev_has_all() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = [one.split(">")[0] for one in project["dependencies"]]
    assert names == ["torch", "numpy", "PyYAML", "xxhash"]
    extras = project["optional-dependencies"]
    wanted = {*extras["fix"], *extras["sparse"], *extras["server"]}
    assert wanted == {*extras["all"]} and wanted <= {*extras["dev"]}


def test_the_core_loads_none_of_them() -> None:
    code = (
        "import sys, torch, gradmend\n"
        "with gradmend.watch(): torch.ones(2, requires_grad=True).exp().sum().backward()\n"
        "gradmend.install()\n"
        "print(sorted({'libcst', 'numba', 'rich', 'pygls', 'IPython'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
